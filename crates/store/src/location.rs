//! Reads a location: where it is, and how it may be shown.
//!
//! Anything without `://` is a path. A location with a user, a password, a query or a fragment is
//! refused and shown without them: credentials come from the environment, never from a URL.

use std::path::{Path, PathBuf};

use url::Url;

use crate::StoreError;

/// A location, understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Location {
    Local {
        /// Absolute, so that a later change of the working directory means nothing.
        path: PathBuf,
    },
    /// `bucket` is empty only for a private memory store; `prefix` has no slash at its ends.
    Object {
        scheme: Scheme,
        bucket: String,
        prefix: String,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scheme {
    Memory,
    Gcs,
    S3,
}

impl Scheme {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Gcs => "gs",
            Self::S3 => "s3",
        }
    }
}

impl Location {
    pub(crate) fn parse(text: &str) -> Result<Self, StoreError> {
        let invalid = |reason: &str| StoreError::InvalidLocation {
            url: redact(text),
            reason: reason.to_owned(),
        };
        if text.trim().is_empty() {
            return Err(invalid("it is empty: give a path or a URL"));
        }
        if text.contains('\0') {
            return Err(invalid("it holds a NUL character"));
        }
        let Some((scheme, _)) = text.split_once("://") else {
            return local(Path::new(text))
                .ok_or_else(|| invalid("the working directory is gone: give an absolute path"));
        };
        let scheme = match scheme.to_ascii_lowercase().as_str() {
            "file" => None,
            "memory" => Some(Scheme::Memory),
            "gs" => Some(Scheme::Gcs),
            "s3" => Some(Scheme::S3),
            _ => {
                return Err(invalid(
                    "the scheme is unknown: use a path, file://, gs://, s3:// or memory://",
                ));
            }
        };
        let url = Url::parse(text).map_err(|error| invalid(&error.to_string()))?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err(invalid(
                "it holds a user or password: leave them out, credentials come from the environment",
            ));
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(invalid(
                "it holds a `?` or `#`: write them as %3F and %23, or leave them out",
            ));
        }
        let Some(scheme) = scheme else {
            if url.host_str().is_some_and(|host| host != "localhost") {
                return Err(invalid("a file URL has three slashes: file:///directory"));
            }
            return url
                .to_file_path()
                .ok()
                .and_then(|path| local(&path))
                .ok_or_else(|| invalid("it is no absolute path"));
        };
        // The host part as written: buckets are case-sensitive in places and may hold `_`.
        let rest = text.split_once("://").map_or("", |(_, rest)| rest);
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.is_empty() && scheme != Scheme::Memory {
            return Err(invalid("the bucket is missing: gs://bucket/directory"));
        }
        let prefix = percent_decode(prefix.trim_matches('/'))
            .ok_or_else(|| invalid("its percent-encoding is broken"))?;
        if !prefix.is_empty() {
            check_name(&prefix).map_err(invalid)?;
        }
        Ok(Self::Object {
            scheme,
            bucket: bucket.to_owned(),
            prefix,
        })
    }

    /// How the location is shown.
    pub(crate) fn display(&self) -> String {
        match self {
            Self::Local { path } => path.display().to_string(),
            Self::Object {
                scheme,
                bucket,
                prefix,
            } if prefix.is_empty() => {
                format!("{}://{bucket}", scheme.as_str())
            }
            Self::Object {
                scheme,
                bucket,
                prefix,
            } => {
                format!("{}://{bucket}/{prefix}", scheme.as_str())
            }
        }
    }

    /// The directory and the last component, `None` where there is no component.
    pub(crate) fn split_last(self) -> Option<(Self, String)> {
        match self {
            Self::Local { path } => {
                let name = path.file_name()?.to_str()?.to_owned();
                Some((
                    Self::Local {
                        path: path.parent()?.to_owned(),
                    },
                    name,
                ))
            }
            Self::Object { prefix, .. } if prefix.is_empty() => None,
            Self::Object {
                scheme,
                bucket,
                prefix,
            } => {
                let (parent, name) = prefix.rsplit_once('/').unwrap_or(("", &prefix));
                let parent = Self::Object {
                    scheme,
                    bucket,
                    prefix: parent.to_owned(),
                };
                Some((parent, name.to_owned()))
            }
        }
    }
}

fn local(path: &Path) -> Option<Location> {
    Some(Location::Local {
        path: std::path::absolute(path).ok()?,
    })
}

/// A location fit to be shown, whatever was typed.
fn redact(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else {
        return text.to_owned();
    };
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    let (authority, path) = rest
        .split_once('/')
        .map_or((rest, None), |(a, p)| (a, Some(p)));
    let host = authority
        .rsplit_once('@')
        .map_or(authority, |(_, host)| host);
    match path {
        // A password with a slash in it is no URL any more; show nothing after the scheme.
        Some(path) if path.contains('@') => format!("{scheme}://..."),
        Some(path) => format!("{scheme}://{host}/{path}"),
        None => format!("{scheme}://{host}"),
    }
}

fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let high = char::from(bytes.next()?).to_digit(16)?;
            let low = char::from(bytes.next()?).to_digit(16)?;
            decoded.push(u8::try_from(high * 16 + low).ok()?);
        } else {
            decoded.push(byte);
        }
    }
    String::from_utf8(decoded).ok()
}

/// Refuses names that would leave the directory, that some store cannot hold, or that are ours.
pub(crate) fn check_name(name: &str) -> Result<(), &'static str> {
    if name.is_empty() {
        return Err("it is empty");
    }
    if name.len() > 1000 {
        return Err("it is longer than 1000 bytes");
    }
    if name.chars().any(char::is_control) {
        return Err("it holds a control character");
    }
    for part in name.split('/') {
        match part {
            "" => return Err("it begins or ends with `/` or holds `//`"),
            "." | ".." => return Err("`.` and `..` are not allowed in it"),
            _ if part.starts_with(OURS) => {
                return Err("names beginning with `.aqueduct-` are taken");
            }
            _ => {}
        }
    }
    Ok(())
}

/// Temporary files and probes begin with this; listings leave them out.
pub(crate) const OURS: &str = ".aqueduct-";

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Location {
        Location::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn paths_and_urls_name_the_same_directory() {
        let expected = Location::Local {
            path: "/data/a b".into(),
        };
        assert_eq!(parse("/data/a b"), expected);
        assert_eq!(parse("file:///data/a%20b"), expected);
        assert_eq!(parse("file://localhost/data/a%20b"), expected);
        let Location::Local { path } = parse("relative/dir") else {
            panic!("not local")
        };
        assert!(path.is_absolute() && path.ends_with("relative/dir"));
    }

    #[test]
    fn objects_have_a_bucket_and_a_prefix() {
        let Location::Object {
            scheme,
            bucket,
            prefix,
        } = parse("gs://my_Bucket/a%20b/c/")
        else {
            panic!("not an object");
        };
        assert_eq!(
            (scheme, bucket.as_str(), prefix.as_str()),
            (Scheme::Gcs, "my_Bucket", "a b/c")
        );
        assert_eq!(parse("s3://b").display(), "s3://b");
        assert_eq!(parse("memory://m/x/").display(), "memory://m/x");
    }

    #[test]
    fn credentials_and_queries_are_refused_and_not_shown() {
        for text in [
            "gs://user:SECRET@bucket/dir",
            "s3://SECRET@bucket",
            "s3://bucket/dir?key=SECRET",
            "file:///dir#SECRET",
            "ftp://user:SECRET@host/dir?SECRET",
            "s3://user:SEC/RET@bucket",
        ] {
            let error = Location::parse(text).expect_err(text).to_string();
            assert!(
                !error.contains("SECRET") && !error.contains("RET@"),
                "{error}"
            );
        }
    }

    #[test]
    fn unusable_locations_say_what_to_write() {
        for (text, part) in [
            ("", "empty"),
            ("gs:///dir", "bucket is missing"),
            ("file://host/dir", "three slashes"),
            ("http://host/dir", "scheme is unknown"),
            ("gs://bucket/a/../b", "`..`"),
            ("gs://bucket/%zz", "percent"),
        ] {
            let error = Location::parse(text).expect_err(text).to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn names_stay_inside_the_directory() {
        for name in [
            "",
            "/a",
            "a/",
            "a//b",
            "../a",
            "a/..",
            "a\0b",
            "a\nb",
            ".aqueduct-tmp-1",
        ] {
            assert!(check_name(name).is_err(), "{name:?}");
        }
        for name in [
            "a",
            "chk-1/manifest",
            "ünï/co de",
            ".hidden",
            "a%20b",
            "a..b",
        ] {
            assert!(check_name(name).is_ok(), "{name:?}");
        }
    }

    #[test]
    fn the_last_component_splits_off() {
        let (parent, name) = parse("gs://b/x/y.csv")
            .split_last()
            .expect("has a component");
        assert_eq!(
            (parent.display().as_str(), name.as_str()),
            ("gs://b/x", "y.csv")
        );
        let (parent, name) = parse("/y.csv").split_last().expect("has a component");
        assert_eq!((parent.display().as_str(), name.as_str()), ("/", "y.csv"));
        assert!(parse("gs://b").split_last().is_none());
        assert!(parse("/").split_last().is_none());
    }
}

//! Filters of subscriptions: `attributes:k`, `attributes.k = "v"`, `!=`, `hasPrefix`, `NOT`, `-`,
//! `AND`, `OR`, parentheses.

use std::collections::HashMap;

/// How deep parentheses and negations may nest. Filters have at most 256 bytes, so this only
/// guards the stack when a test raises that limit.
const MOST_DEPTH: usize = 64;

/// A filter, ready to be asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Filter {
    Has(String),
    Equals(String, String),
    /// A message without the attribute differs.
    Differs(String, String),
    HasPrefix(String, String),
    Not(Box<Filter>),
    All(Vec<Filter>),
    Any(Vec<Filter>),
}

/// Where the text stops being a filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FilterError {
    /// Bytes from the start.
    pub(crate) at: usize,
}

impl Filter {
    pub(crate) fn parse(text: &str) -> Result<Self, FilterError> {
        let mut parser = Parser {
            text,
            at: 0,
            depth: 0,
        };
        let filter = parser.expression()?;
        parser.skip_space();
        if parser.at < text.len() {
            return Err(parser.error());
        }
        Ok(filter)
    }

    pub(crate) fn matches(&self, attributes: &HashMap<String, String>) -> bool {
        match self {
            Self::Has(key) => attributes.contains_key(key),
            Self::Equals(key, value) => attributes.get(key) == Some(value),
            Self::Differs(key, value) => attributes.get(key) != Some(value),
            Self::HasPrefix(key, prefix) => attributes
                .get(key)
                .is_some_and(|value| value.starts_with(prefix.as_str())),
            Self::Not(filter) => !filter.matches(attributes),
            Self::All(filters) => filters.iter().all(|filter| filter.matches(attributes)),
            Self::Any(filters) => filters.iter().any(|filter| filter.matches(attributes)),
        }
    }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
}

impl Parser<'_> {
    fn error(&self) -> FilterError {
        FilterError { at: self.at }
    }

    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn skip_space(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start().len();
    }

    fn eat(&mut self, token: &str) -> bool {
        self.skip_space();
        let found = self.rest().starts_with(token);
        if found {
            self.at += token.len();
        }
        found
    }

    fn expect(&mut self, token: &str) -> Result<(), FilterError> {
        if self.eat(token) {
            Ok(())
        } else {
            Err(self.error())
        }
    }

    /// Eats a word that no identifier continues.
    fn eat_word(&mut self, word: &str) -> bool {
        self.skip_space();
        let Some(rest) = self.rest().strip_prefix(word) else {
            return false;
        };
        let ends = !rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
        if ends {
            self.at += word.len();
        }
        ends
    }

    /// Terms joined by one operator; mixing them needs parentheses.
    fn expression(&mut self) -> Result<Filter, FilterError> {
        let first = self.term()?;
        let mut terms = vec![first];
        let and = self.eat_word("AND");
        if !and && !self.eat_word("OR") {
            return Ok(terms.remove(0));
        }
        loop {
            terms.push(self.term()?);
            let again = if and {
                self.eat_word("AND")
            } else {
                self.eat_word("OR")
            };
            if !again {
                break;
            }
        }
        Ok(if and {
            Filter::All(terms)
        } else {
            Filter::Any(terms)
        })
    }

    fn term(&mut self) -> Result<Filter, FilterError> {
        self.depth += 1;
        if self.depth > MOST_DEPTH {
            return Err(self.error());
        }
        let term = if self.eat_word("NOT") || self.eat("-") {
            Filter::Not(Box::new(self.term()?))
        } else if self.eat("(") {
            let inner = self.expression()?;
            self.expect(")")?;
            inner
        } else {
            self.condition()?
        };
        self.depth -= 1;
        Ok(term)
    }

    fn condition(&mut self) -> Result<Filter, FilterError> {
        if self.eat_word("hasPrefix") {
            self.expect("(")?;
            self.expect("attributes")?;
            self.expect(".")?;
            let key = self.name()?;
            self.expect(",")?;
            let prefix = self.quoted()?;
            self.expect(")")?;
            return Ok(Filter::HasPrefix(key, prefix));
        }
        self.expect("attributes")?;
        if self.eat(":") {
            return Ok(Filter::Has(self.name()?));
        }
        self.expect(".")?;
        let key = self.name()?;
        if self.eat("!=") {
            return Ok(Filter::Differs(key, self.quoted()?));
        }
        self.expect("=")?;
        Ok(Filter::Equals(key, self.quoted()?))
    }

    fn name(&mut self) -> Result<String, FilterError> {
        self.skip_space();
        if self.rest().starts_with('"') {
            return self.quoted();
        }
        let rest = self.rest();
        let length = rest
            .find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '-'))
            .unwrap_or(rest.len());
        let name = rest[..length].to_owned();
        if name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
            self.at += length;
            Ok(name)
        } else {
            Err(self.error())
        }
    }

    fn quoted(&mut self) -> Result<String, FilterError> {
        self.expect("\"")?;
        let mut value = String::new();
        let mut escaped = false;
        let rest = self.rest();
        for (index, c) in rest.char_indices() {
            match c {
                c if escaped => {
                    value.push(c);
                    escaped = false;
                }
                '\\' => escaped = true,
                '"' => {
                    self.at += index + 1;
                    return Ok(value);
                }
                c => value.push(c),
            }
        }
        Err(self.error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(filter: &str, attributes: &[(&str, &str)]) -> bool {
        let attributes = attributes
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        Filter::parse(filter)
            .unwrap_or_else(|error| panic!("{filter}: {error:?}"))
            .matches(&attributes)
    }

    #[test]
    fn filters_select_by_attributes() {
        let order = [("type", "order"), ("region", "eu-west")];
        for (filter, expected) in [
            ("attributes:type", true),
            ("attributes:\"type\"", true),
            ("attributes:missing", false),
            ("attributes.type = \"order\"", true),
            ("attributes.type=\"bill\"", false),
            ("attributes.type != \"bill\"", true),
            ("attributes.missing != \"bill\"", true),
            ("hasPrefix(attributes.region, \"eu-\")", true),
            ("hasPrefix(attributes.missing, \"\")", false),
            ("NOT attributes:type", false),
            ("-attributes:missing", true),
            ("attributes:type AND attributes:missing", false),
            ("attributes:type OR attributes:missing", true),
            (
                "attributes:type AND (attributes:missing OR NOT attributes.region=\"us\")",
                true,
            ),
            ("attributes.type = \"a\\\"b\"", false),
        ] {
            assert_eq!(matches(filter, &order), expected, "{filter}");
        }
    }

    #[test]
    fn what_is_no_filter_is_refused() {
        let deep = "NOT ".repeat(1_000) + "attributes:a";
        for filter in [
            "",
            "attributes",
            "attributes:",
            "attributes.a",
            "attributes.a = b",
            "attributes.a = \"b",
            "attributes:a attributes:b",
            "attributes:a AND",
            "attributes:a AND attributes:b OR attributes:c",
            "(attributes:a",
            "hasPrefix(attributes.a)",
            "data = \"x\"",
            &deep,
        ] {
            assert!(Filter::parse(filter).is_err(), "{filter}");
        }
    }
}

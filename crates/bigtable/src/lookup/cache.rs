//! The cache of a lookup client: least recently used answers go first, old ones are not handed out.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use aqueduct_connector::Moment;
use aqueduct_connector::options::{ByteSize, ConfigError};
use bytes::Bytes;

use crate::client::read::Row;
use crate::scan_options::{
    LOOKUP_CACHE_EXPIRE, LOOKUP_CACHE_MAX_BYTES, LOOKUP_CACHE_MAX_ROWS, LOOKUP_CACHE_MISSING,
};

/// What the books of one answer take, about: two map entries and two keys' headers.
const ENTRY_BYTES: u64 = 160;

/// Bounds of a cache; at least one is required.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LookupCache {
    max_rows: Option<u64>,
    max_bytes: Option<ByteSize>,
    expire_after_write: Option<Duration>,
    missing: bool,
}

impl Default for LookupCache {
    fn default() -> Self {
        Self::new()
    }
}

impl LookupCache {
    /// Without a bound; at least one must be set.
    #[must_use]
    pub fn new() -> Self {
        Self {
            max_rows: None,
            max_bytes: None,
            expire_after_write: None,
            missing: LOOKUP_CACHE_MISSING.ours(),
        }
    }

    /// Keeps at most so many answers. SQL: `lookup.partial-cache.max-rows`.
    #[must_use]
    pub fn max_rows(mut self, rows: NonZeroU64) -> Self {
        self.max_rows = Some(rows.get());
        self
    }

    /// Keeps at most so many bytes of keys and rows, their books included. SQL: `lookup.partial-cache.max-bytes`.
    #[must_use]
    pub fn max_bytes(mut self, bytes: ByteSize) -> Self {
        self.max_bytes = Some(bytes);
        self
    }

    /// Asks again for an answer of this age. SQL: `lookup.partial-cache.expire-after-write`.
    #[must_use]
    pub fn expire_after_write(mut self, age: Duration) -> Self {
        self.expire_after_write = Some(age);
        self
    }

    /// Does not keep the answer that a row does not exist. SQL: `lookup.partial-cache.cache-missing-key`.
    #[must_use]
    pub fn without_missing(mut self) -> Self {
        self.missing = false;
        self
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        if let Some(bytes) = self.max_bytes {
            LOOKUP_CACHE_MAX_BYTES.check(bytes)?;
        }
        if let Some(age) = self.expire_after_write {
            LOOKUP_CACHE_EXPIRE.check(age)?;
        }
        if self.max_rows.is_none() && self.max_bytes.is_none() && self.expire_after_write.is_none()
        {
            return Err(ConfigError::invalid(
                LOOKUP_CACHE_MAX_ROWS.key(),
                "a cache needs at least one bound, in rows, in bytes or in age",
            ));
        }
        Ok(())
    }
}

/// What the cache knows of a key.
pub(super) enum Cached {
    Unknown,
    Missing,
    Row(Arc<Row>),
}

#[derive(Debug)]
pub(super) struct RowCache {
    bounds: LookupCache,
    answers: HashMap<Bytes, Answer>,
    /// Keys by their last use, oldest first.
    by_use: BTreeMap<u64, Bytes>,
    uses: u64,
    bytes: u64,
}

#[derive(Debug)]
struct Answer {
    row: Option<Arc<Row>>,
    written: Moment,
    bytes: u64,
    last_use: u64,
}

impl RowCache {
    pub(super) fn new(bounds: LookupCache) -> Self {
        Self {
            bounds,
            answers: HashMap::new(),
            by_use: BTreeMap::new(),
            uses: 0,
            bytes: 0,
        }
    }

    pub(super) fn get(&mut self, key: &Bytes, now: Moment) -> Cached {
        let Some(answer) = self.answers.get_mut(key) else {
            return Cached::Unknown;
        };
        if let Some(age) = self.bounds.expire_after_write
            && now >= answer.written.after(age)
        {
            self.remove(key);
            return Cached::Unknown;
        }
        self.uses += 1;
        if let Some(kept) = self.by_use.remove(&answer.last_use) {
            self.by_use.insert(self.uses, kept);
        }
        answer.last_use = self.uses;
        match &answer.row {
            Some(row) => Cached::Row(row.clone()),
            None => Cached::Missing,
        }
    }

    /// Keeps an answer. `key` must own its bytes alone, or it keeps a message alive.
    pub(super) fn insert(&mut self, key: Bytes, row: Option<Arc<Row>>, now: Moment) {
        self.remove(&key);
        if row.is_none() && !self.bounds.missing {
            return;
        }
        let bytes =
            ENTRY_BYTES + key.len() as u64 + row.as_ref().map_or(0, |row| row.memory_bytes());
        if self.bounds.max_bytes.is_some_and(|most| bytes > most.0) {
            // It would push everything else out and not fit even then.
            return;
        }
        self.uses += 1;
        self.bytes += bytes;
        self.by_use.insert(self.uses, key.clone());
        let answer = Answer {
            row,
            written: now,
            bytes,
            last_use: self.uses,
        };
        self.answers.insert(key, answer);
        while self.is_over() {
            let Some((_, oldest)) = self.by_use.pop_first() else {
                return;
            };
            if let Some(answer) = self.answers.remove(&oldest) {
                self.bytes -= answer.bytes;
            }
        }
    }

    fn is_over(&self) -> bool {
        self.bounds
            .max_rows
            .is_some_and(|most| self.answers.len() as u64 > most)
            || self
                .bounds
                .max_bytes
                .is_some_and(|most| self.bytes > most.0)
    }

    fn remove(&mut self, key: &Bytes) {
        if let Some(answer) = self.answers.remove(key) {
            self.bytes -= answer.bytes;
            self.by_use.remove(&answer.last_use);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::from_origin(Duration::from_secs(seconds))
    }

    fn rows(most: u64) -> LookupCache {
        LookupCache::new().max_rows(NonZeroU64::new(most).expect("not zero"))
    }

    #[test]
    fn a_cache_without_a_bound_is_refused() {
        assert!(LookupCache::new().check().is_err());
        assert!(LookupCache::new().max_bytes(ByteSize(0)).check().is_err());
        assert!(rows(1).check().is_ok());
    }

    #[test]
    fn the_least_recently_used_answer_goes_first() {
        let mut cache = RowCache::new(rows(2));
        cache.insert(Bytes::from("a"), None, at(0));
        cache.insert(Bytes::from("b"), None, at(0));
        assert!(matches!(
            cache.get(&Bytes::from("a"), at(0)),
            Cached::Missing
        ));
        cache.insert(Bytes::from("c"), None, at(0));
        assert!(matches!(
            cache.get(&Bytes::from("b"), at(0)),
            Cached::Unknown
        ));
        assert!(matches!(
            cache.get(&Bytes::from("a"), at(0)),
            Cached::Missing
        ));
    }

    #[test]
    fn an_answer_as_old_as_the_bound_is_asked_for_again() {
        let age = Duration::from_secs(10);
        let mut cache = RowCache::new(LookupCache::new().expire_after_write(age));
        cache.insert(Bytes::from("a"), None, at(5));
        assert!(matches!(
            cache.get(&Bytes::from("a"), at(14)),
            Cached::Missing
        ));
        assert!(matches!(
            cache.get(&Bytes::from("a"), at(15)),
            Cached::Unknown
        ));
        assert!(cache.by_use.is_empty() && cache.bytes == 0);
    }

    #[test]
    fn absent_rows_are_kept_only_if_wanted() {
        let mut cache = RowCache::new(rows(2).without_missing());
        cache.insert(Bytes::from("a"), None, at(0));
        assert!(cache.answers.is_empty());
    }

    proptest! {
        #[test]
        fn the_bounds_hold_and_the_books_agree(
            most_rows in 1..5u64,
            most_bytes in 150..700u64,
            steps in prop::collection::vec((0..8u8, 0..60usize, any::<bool>()), 0..60),
        ) {
            let bounds = rows(most_rows).max_bytes(ByteSize(most_bytes));
            let mut cache = RowCache::new(bounds);
            for (key, len, insert) in steps {
                let key = Bytes::from(vec![key; len + 1]);
                if insert {
                    cache.insert(key, None, at(0));
                } else {
                    cache.get(&key, at(0));
                }
                prop_assert!(cache.answers.len() as u64 <= most_rows);
                prop_assert!(cache.bytes <= most_bytes);
                prop_assert_eq!(cache.answers.len(), cache.by_use.len());
                let sum: u64 = cache.answers.values().map(|answer| answer.bytes).sum();
                prop_assert_eq!(sum, cache.bytes);
            }
        }
    }
}

//! What an API server has said about tokens a short while ago.
//!
//! Keys are hashes, so that no token is kept. A good word lasts 60 s and never longer than the
//! token, a bad one 5 s: an account that is deleted, or made, is noticed that much later. Time is
//! handed in.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use ring::digest::{Context, SHA256};
use tokio::time::Instant;

use super::refused::TokenRefused;

/// SHA-256 of who was asked and about which token.
pub(super) type Key = [u8; 32];

/// Returns the key of `token`, when `asked` is told to tell.
pub(super) fn key(asked: u64, token: &str) -> Key {
    let mut context = Context::new(&SHA256);
    context.update(&asked.to_be_bytes());
    context.update(token.as_bytes());
    let mut key = Key::default();
    key.copy_from_slice(context.finish().as_ref());
    key
}

/// Verdicts by key, at most [`MAX_ENTRIES`].
#[derive(Debug, Default)]
pub(super) struct Cache(HashMap<Key, (Instant, Result<(), TokenRefused>)>);

impl Cache {
    /// Returns what was said, if that still holds.
    pub(super) fn get(&mut self, key: &Key, now: Instant) -> Option<Result<(), TokenRefused>> {
        let (until, verdict) = self.0.get(key)?;
        if now < *until {
            return Some(verdict.clone());
        }
        self.0.remove(key);
        None
    }

    /// Keeps what was said at `now` of a token that lasts for `left`, if that is known.
    pub(super) fn put(
        &mut self,
        key: Key,
        verdict: Result<(), TokenRefused>,
        left: Option<Duration>,
        now: Instant,
    ) {
        let lasts = match &verdict {
            Ok(()) => left.map_or(GOOD, |left| left.min(GOOD)),
            Err(refused) if refused.lasts() => BAD,
            Err(_) => return,
        };
        make_space(&mut self.0, &key, MAX_ENTRIES, |(until, _)| *until);
        self.0.insert(key, (now + lasts, verdict));
    }
}

/// Makes space for `key` in a table of at most `limit` entries: the entry that would end first is
/// removed. The search takes some 30 µs in 10,000 entries, which a full table costs per review.
pub(super) fn make_space<K: Clone + Eq + Hash, V>(
    table: &mut HashMap<K, V>,
    key: &K,
    limit: usize,
    end: impl Fn(&V) -> Instant,
) {
    if table.len() < limit || table.contains_key(key) {
        return;
    }
    let first = table.iter().min_by_key(|(_, value)| end(value));
    if let Some(first) = first.map(|(key, _)| key.clone()) {
        table.remove(&first);
    }
}

/// Verdicts that are remembered, and buckets of [`super::Rates`].
pub(super) const MAX_ENTRIES: usize = 10_000;
const GOOD: Duration = Duration::from_secs(60);
const BAD: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn verdicts_expire_by_kind_and_token() {
        let mut cache = Cache::default();
        let (now, key) = (Instant::now(), key(1, "token"));
        for (verdict, left, lasts) in [
            (Ok(()), Some(3600), 60),
            (Ok(()), Some(7), 7),
            (Err(TokenRefused::Unauthenticated), None, 5),
            (Err(TokenRefused::Unavailable), None, 0),
        ] {
            cache.put(key, verdict.clone(), left.map(seconds), now);
            if let Some(last) = seconds(lasts).checked_sub(seconds(1)) {
                assert_eq!(cache.get(&key, now + last), Some(verdict));
            }
            assert_eq!(cache.get(&key, now + seconds(lasts)), None);
        }
    }

    #[test]
    fn full_table_drops_what_ends_first() {
        let (now, mut table) = (Instant::now(), HashMap::new());
        for (key, lasts) in [("a", 1), ("b", 2), ("a", 3), ("c", 4)] {
            make_space(&mut table, &key, 2, |until| *until);
            table.insert(key, now + seconds(lasts));
        }
        assert_eq!(table.get("a"), Some(&(now + seconds(3))));
        assert_eq!(table.get("b"), None);
        assert_eq!(table.get("c"), Some(&(now + seconds(4))));
    }

    #[test]
    fn one_token_has_a_key_per_judge() {
        assert_ne!(key(1, "token"), key(2, "token"));
        assert_ne!(key(1, "token"), key(1, "other"));
    }
}

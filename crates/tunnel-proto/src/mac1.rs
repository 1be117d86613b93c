//! Finds the server a handshake is for by its `mac1`, within a budget.
//!
//! ```text
//! initiation without route id ──▶ Mac1Table: keys, those that matched last first ──▶ server
//!                                    ▲
//!                              TokenBucket: one token per key tried
//! ```
//!
//! `mac1` is a hash of the message keyed with the receiver's *public* key (WireGuard paper §5.4.4),
//! so it shows that the sender knows that key and nothing else: replayed messages pass. Trying all
//! keys costs about 0.3 µs each, and any host can send 148 bytes; that is why clients of our own
//! name their server in the datagram, which then costs one check outside the budget, and only
//! foreign ones come to the scan.
//!
//! Verifies no `mac2`, answers no cookies, and remembers no addresses.

use std::collections::HashMap;
use std::time::Instant;

use blake2::digest::consts::U16;
use blake2::digest::{FixedOutput, KeyInit, Update};
use blake2::{Blake2s256, Blake2sMac, Digest};

use crate::bucket::TokenBucket;
use crate::datagram::{INITIATION_LEN, RESPONSE_LEN};

/// The key under which `mac1` of messages to one server is computed, ready for use.
#[derive(Clone)]
pub struct Mac1Key(Blake2sMac<U16>);

impl Mac1Key {
    /// Derives the key from the receiver's public key.
    #[must_use]
    pub fn new(public_key: &[u8; 32]) -> Self {
        let key = Blake2s256::new()
            .chain_update(LABEL)
            .chain_update(public_key)
            .finalize();
        Self(<Blake2sMac<U16> as KeyInit>::new(&key))
    }

    /// Returns whether `message`, an initiation or a response, carries the right `mac1`.
    ///
    /// The reserved bytes count as zero, whatever they hold. Takes the same time for every
    /// message of one size.
    #[must_use]
    pub fn verify(&self, message: &[u8]) -> bool {
        let Some((kind, body, mac1)) = parts(message) else {
            return false;
        };
        let mut mac = self.0.clone();
        mac.update(&[kind, 0, 0, 0]);
        mac.update(body);
        let expected: [u8; 16] = mac.finalize_fixed().into();
        let difference = expected
            .iter()
            .zip(mac1)
            .fold(0, |sum, (ours, theirs)| sum | (ours ^ theirs));
        difference == 0
    }
}

impl std::fmt::Debug for Mac1Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Mac1Key(..)") // public keys are not shown: knowing one lets mac1 be made
    }
}

/// Splits a handshake message into its kind, what `mac1` covers behind the first four bytes, and
/// `mac1`.
fn parts(message: &[u8]) -> Option<(u8, &[u8], &[u8; 16])> {
    let (kind, _) = message.split_first()?;
    match (kind, message.len()) {
        (1, INITIATION_LEN) | (2, RESPONSE_LEN) => {}
        _ => return None,
    }
    let covered = message.len() - 32; // mac1 and mac2, 16 bytes each, end the message
    let body = message.get(4..covered)?;
    let mac1 = message.get(covered..)?.first_chunk()?;
    Some((*kind, body, mac1))
}

const LABEL: &[u8] = b"mac1----";

/// The public keys of all servers, to be tried within a budget.
///
/// `S` names a server; several keys may name the same one, as during a rotation.
pub struct Mac1Table<S> {
    /// Ordered by the last match, the most recent first.
    entries: Vec<Entry<S>>,
    budget: TokenBucket,
}

struct Entry<S> {
    public_key: [u8; 32],
    key: Mac1Key,
    server: S,
}

impl<S: Copy> Mac1Table<S> {
    /// Returns a table without keys. `budget` counts keys tried: 200,000 a second are about 6 % of
    /// one CPU.
    #[must_use]
    pub fn new(budget: TokenBucket) -> Self {
        Self {
            entries: Vec::new(),
            budget,
        }
    }

    /// Replaces all keys. Those that stay keep their order, and new ones follow them. The budget
    /// stays as it is.
    pub fn replace(&mut self, keys: impl IntoIterator<Item = ([u8; 32], S)>) {
        let keys: Vec<_> = keys.into_iter().collect();
        let mut added: HashMap<[u8; 32], S> = keys.iter().copied().collect();
        self.entries.retain_mut(|entry| {
            let stays = added.remove(&entry.public_key);
            stays.map(|server| entry.server = server).is_some()
        });
        let added = keys.into_iter().filter_map(|(public_key, _)| {
            let server = added.remove(&public_key)?;
            let key = Mac1Key::new(&public_key);
            Some(Entry {
                public_key,
                key,
                server,
            })
        });
        self.entries.extend(added);
    }

    /// Returns the server whose key made the message's `mac1`.
    ///
    /// # Errors
    ///
    /// - [`ScanError::NotHandshake`]: neither an initiation nor a response; costs nothing;
    /// - [`ScanError::Unknown`]: every key was tried, none fits;
    /// - [`ScanError::Budget`]: the budget ended before a key fitted.
    pub fn find(&mut self, now: Instant, message: &[u8]) -> Result<S, ScanError> {
        if parts(message).is_none() {
            return Err(ScanError::NotHandshake);
        }
        let affordable = usize::try_from(self.budget.available(now)).unwrap_or(usize::MAX);
        let found = self
            .entries
            .iter()
            .take(affordable)
            .position(|entry| entry.key.verify(message));
        let tried = match found {
            Some(position) => position + 1,
            None => affordable.min(self.entries.len()),
        };
        self.budget
            .take(now, u32::try_from(tried).unwrap_or(u32::MAX));
        let Some(position) = found else {
            return Err(if tried == self.entries.len() {
                ScanError::Unknown
            } else {
                ScanError::Budget
            });
        };
        if let Some(recent) = self.entries.get_mut(..=position) {
            recent.rotate_right(1);
        }
        let first = self.entries.first().ok_or(ScanError::Unknown)?;
        Ok(first.server)
    }
}

/// Why no server was found for a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScanError {
    /// No tokens were left to try all keys.
    #[error("the budget for trying keys is spent")]
    Budget,
    /// The datagram is neither an initiation nor a response.
    #[error("not a handshake")]
    NotHandshake,
    /// No known key fits.
    #[error("mac1 fits no known server")]
    Unknown,
}

//! What provisioning remembers of a shoot between runs: every key it made, and how far a rotation is.
//!
//! ```text
//!   Secret vpn-provision ── state.json ──▶ State ── plan ──▶ State ──▶ Secret vpn-provision
//!                                            └───── render ──▶ each part's own keys
//! ```
//!
//! Everything else that is written follows from this and the parameters, so a Secret that was
//! deleted or edited comes back as it was. It has a Secret of its own because it holds
//! what signs certificates. The process that reads it ends soon; its copies are not overwritten.

use std::fmt;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use tunnel::keys::{KeyTextError, PrivateKey};

/// The layout of the state that this program writes and reads.
pub(super) const VERSION: u32 = 1;

/// Seconds since 1970.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub(super) struct Moment(pub(super) u64);

impl Moment {
    /// How long ago it was at `now`; nothing for what is still to come.
    pub(super) fn age(self, now: Self) -> Duration {
        Duration::from_secs(now.0.saturating_sub(self.0))
    }
}

/// How far a rotation is. In each phase, who trusts and who uses which keys:
///
/// | | servers have | clients know of servers | clients have, use | servers know of clients |
/// |---|---|---|---|---|
/// | `Preparing` | old, new | old | old | old, new |
/// | `Prepared` | old, new | old, new | old, new | old, new |
/// | `Completing` | old, new | new | new | old, new |
/// | `Completed` | new | new | new | new |
///
/// | | servers trust | servers show | API servers trust | API servers show |
/// |---|---|---|---|---|
/// | `Preparing` | old, new | old | old | old |
/// | `Prepared` | old, new | old | old, new | new |
/// | `Completing` | new | new | old, new | new |
/// | `Completed` | new | new | new | new |
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(super) enum Phase {
    /// No rotation is under way: there is one key each.
    Completed,
    /// The first step of the second phase.
    Completing,
    /// The second step of the first phase.
    Prepared,
    /// The first step of the first phase.
    Preparing,
}

/// Everything that is remembered.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct State {
    pub(super) version: u32,
    pub(super) phase: Phase,
    /// When the phase began, or what belongs to it was last put back.
    pub(super) since: Moment,
    /// When a rotation last ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) last_completion: Option<Moment>,
    pub(super) servers: Vec<ServerState>,
    /// Each client's keys.
    pub(super) clients: Vec<Keys<Secret>>,
    /// The key that a server and a client share, by server, then client.
    pub(super) preshared: Vec<Vec<Secret>>,
    /// The proxy's authorities.
    pub(super) authorities: Keys<Authority>,
    /// What servers show API servers.
    pub(super) server_certificate: Leaf,
    /// What API servers show servers.
    pub(super) client_certificate: Leaf,
}

/// What is remembered of a server.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct ServerState {
    pub(super) route_id: u32,
    pub(super) keys: Keys<Secret>,
}

/// One key, or during a rotation the old and the new one.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Keys<K> {
    /// The only one, or the old one.
    pub(super) current: K,
    /// The new one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) next: Option<K>,
}

/// Which of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    /// Both, the new one first.
    Both,
    /// The new one alone.
    New,
    /// The old one alone.
    Old,
}

impl<K> Keys<K> {
    pub(super) fn one(current: K) -> Self {
        Self {
            current,
            next: None,
        }
    }

    /// Returns the newest one.
    pub(super) fn newest(&self) -> &K {
        self.next.as_ref().unwrap_or(&self.current)
    }

    /// Returns those, one at least: who came during a rotation has one only.
    pub(super) fn these(&self, which: Which) -> Vec<&K> {
        match (which, &self.next) {
            (Which::Both, Some(next)) => vec![next, &self.current],
            (Which::New, Some(next)) => vec![next],
            (Which::Old, _) | (Which::Both | Which::New, None) => vec![&self.current],
        }
    }

    /// Forgets the old one.
    pub(super) fn settle(&mut self) {
        if let Some(next) = self.next.take() {
            self.current = next;
        }
    }
}

/// A private or preshared key, as text: base64 of WireGuard, PKCS #8 in PEM of a certificate.
#[derive(Clone, Deserialize, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub(super) struct Secret(String);

impl Secret {
    pub(super) fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(STANDARD.encode(bytes))
    }

    pub(super) fn new(text: String) -> Self {
        Self(text)
    }

    /// Returns the key as its file has it.
    pub(super) fn text(&self) -> &str {
        &self.0
    }

    /// Returns the public key that belongs to a private one, base64.
    pub(super) fn public(&self) -> Result<String, KeyTextError> {
        let key: PrivateKey = self.0.parse()?;
        Ok(key.public().to_string())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// A certificate authority.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Authority {
    /// Its subject, which no other authority has.
    pub(super) name: String,
    /// PEM.
    pub(super) certificate: String,
    pub(super) key: Secret,
    pub(super) from: Moment,
    pub(super) until: Moment,
}

/// A certificate that an authority has signed.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Leaf {
    /// The authority's name.
    pub(super) issuer: String,
    /// Names and addresses it is for.
    pub(super) names: Vec<String>,
    /// PEM.
    pub(super) certificate: String,
    pub(super) key: Secret,
    pub(super) from: Moment,
    pub(super) until: Moment,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_and_new_keys_are_distinguished() {
        let mut keys = Keys::one("old");
        assert_eq!(keys.these(Which::Both), [&"old"]);
        assert_eq!(keys.these(Which::New), [&"old"]);
        keys.next = Some("new");
        assert_eq!(keys.these(Which::Both), [&"new", &"old"]);
        assert_eq!(keys.these(Which::Old), [&"old"]);
        assert_eq!(keys.these(Which::New), [&"new"]);
        keys.settle();
        assert_eq!(keys, Keys::one("new"));
    }

    #[test]
    fn debug_output_hides_secrets() {
        let private = Secret::from_bytes([7; 32]);
        assert_eq!(format!("{private:?}"), "Secret(..)");
        assert_eq!(private.public().unwrap().len(), 44);
    }
}

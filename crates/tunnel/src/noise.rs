//! WireGuard's cryptography, as the tunnel sees it: [`Keys`], [`Noise`], and what they answer.
//!
//! ```text
//!   any initiation ─▶ Keys::identify       ─▶ own key, peer's key     (a server asks this first)
//!
//!   packet ──────────────▶ Noise::seal ─▶ datagram
//!   datagram ────────────▶ Noise::open ─▶ packet, or what to answer
//!   Noise::initiate, tick ──────────────▶ initiation, keepalive
//! ```
//!
//! When sessions begin and end, when handshakes are repeated and when a keepalive is owed is decided by
//! the `now` of the caller, so that simulations need no real time.
//!
//! Only the initiator (the client) begins handshakes; the other end answers. Nothing
//! here waits or queues: what cannot be sealed now is the caller's to drop.

mod boring;
mod sessions;
#[cfg(test)]
mod tests;

use crate::keys::PublicKey;

pub(crate) use boring::{Keys, Noise, UNDER_LOAD};

/// Bytes that `out` has at least, except for sealing.
pub(crate) const OUT_LEN: usize = 148;

/// What a datagram was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opened {
    /// The peer sent a cookie, authentic. The next initiation will carry it; it is due in a second.
    Cookie,
    /// An authentic packet without content.
    Keepalive,
    /// An authentic packet of `len` bytes, at the front of `out`; some IP packet by its looks.
    Packet { len: usize },
    /// `len` bytes, at the front of `out`, go back to where the datagram came from.
    Reply { len: usize, reply: Reply },
}

/// What is replied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// A keepalive: this end initiated, the datagram was the response, the session is there.
    /// Authentic.
    Confirmation,
    /// A cookie: the datagram will be taken when it comes again with it. Not authentic.
    Cookie,
    /// A response: the datagram was the peer's initiation. The session is there once the peer uses
    /// it. Authentic, unless the same initiation came before; then it is the same response.
    Response,
}

/// What is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// An initiation of that many bytes: the session in use is 120 s old, or the latest initiation
    /// got no response for 5 s.
    Initiation(usize),
    /// A keepalive of that many bytes: packets came for 10 s and none went.
    Keepalive(usize),
}

/// The pair of keys of an initiation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Identified {
    /// Under load: `len` bytes, at the front of `out`, go back to the source.
    Cookie { len: usize },
    /// It is between these keys.
    Pair { own: usize, theirs: PublicKey },
}

telemetry::labels! {
    /// Why a datagram was not taken.
    pub(crate) enum Refused {
        /// The caller cannot afford it now.
        Budget = "handshake_budget",
        /// It came before, or is older than what can still be told apart, or has a reserved number.
        Counter = "replay",
        /// No session has that index.
        Index = "unknown_index",
        /// Not made by the holder of the peer's key.
        Key = "bad_key",
        /// The `mac1` is made with none of the own keys.
        Mac = "bad_mac",
        /// Not a WireGuard datagram.
        Malformed = "malformed",
        /// Authentic, but its content is no whole IP packet.
        NotIp = "not_ip",
        /// An initiation to an end that begins handshakes itself, or a response to one that does not.
        Role = "wrong_role",
        /// `out` is too small for it.
        Room = "too_large",
        /// The session is older than 180 s.
        Stale = "session_expired",
        /// The initiation is older than one that was taken.
        Stamp = "old_handshake",
        /// Data or a cookie that was not made with a key of this session or handshake; anyone may send it.
        Tag = "bad_tag",
        /// The initiation that a response is for is not known any more.
        Unexpected = "unexpected_response",
    }
}

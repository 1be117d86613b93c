//! The seam between the tunnel and WireGuard's cryptography.
//!
//! ```text
//!   any initiation ─▶ Keys::identify       ─▶ own key, peer's key     (a server asks this first)
//!
//!   packet ──────────────▶ Noise::seal ─▶ datagram
//!   datagram ────────────▶ Noise::open ─▶ packet, or what to answer
//!   Noise::initiate, tick ──────────────▶ initiation, keepalive
//! ```
//!
//! [`boring`] does it with boringtun, [`plain`] without any cryptography for simulations. When
//! sessions begin and end, when handshakes are repeated and when a keepalive is owed is decided by
//! the `now` of the caller in both.
//!
//! Only the initiator (the client) begins handshakes; the other end answers. Nothing
//! here waits or queues: what cannot be sealed now is the caller's to drop.

pub(crate) mod boring;
#[cfg(test)]
pub(crate) mod plain;
mod sessions;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::keys::{PresharedKey, PrivateKey, PublicKey};

/// The own keys, and the source of [`Noise`] for pairs of keys.
pub(crate) trait Keys {
    /// What seals and opens.
    type Noise: Noise;

    /// Replaces the own keys. Pairs that were made before go on with the key they have.
    fn replace(&mut self, keys: &[PrivateKey]);

    /// Returns the public keys, in the order of the private ones.
    fn own(&self) -> &[PublicKey];

    /// Returns the state of a pair of keys, without a session; `None` when there is no own key of
    /// that number.
    fn pair(&self, pairing: &Pairing, now: Instant) -> Option<Self::Noise>;

    /// Server: finds out between which keys an initiation is. Its reserved bytes are zero.
    ///
    /// Costs a hash per own key; for an initiation that names an own key also a Diffie-Hellman
    /// (60 µs), unless `afford`, asked before, returns false. Under load the answer is a cookie, written
    /// to `out` (at least 64 bytes). Does not show that the peer sent it: that is
    /// [`Noise::open`]'s.
    fn identify(
        &mut self,
        source: IpAddr,
        initiation: &[u8],
        out: &mut [u8],
        afford: impl FnOnce() -> bool,
    ) -> Identified;

    /// To be called about once a second: counts what "under load" means anew.
    fn tick(&mut self);
}

/// What a [`Noise`] is made of.
#[derive(Clone)]
pub(crate) struct Pairing {
    /// The number of the own key.
    pub(crate) own: usize,
    /// The other end's key.
    pub(crate) theirs: PublicKey,
    /// What both ends share beside.
    pub(crate) preshared: Option<PresharedKey>,
    /// The upper 24 bits of every index of this pair; unique in the process.
    pub(crate) index: u32,
    /// Whether this end begins handshakes. Otherwise it only answers.
    pub(crate) initiator: bool,
}

/// One pair of keys: its handshakes and sessions.
pub(crate) trait Noise {
    /// Returns whether packets can be sealed: there is a session, younger than 180 s, and the peer
    /// is known to have it.
    fn is_ready(&self, now: Instant) -> bool;

    /// Returns the age of the session that packets are sealed with.
    fn handshake_age(&self, now: Instant) -> Option<Duration>;

    /// Returns the place of the session with this own index in the order in which the pair's sessions
    /// began. Never repeats while the process runs, although indices do; `None` when there is no
    /// such session.
    fn session_order(&self, local: u32) -> Option<u64>;

    /// Seals a packet (empty: a keepalive) into `out` and returns the size of the datagram, 32 more
    /// than the packet's. `None` without a session, and when `out` is too small.
    ///
    /// Goes by the time of the latest other call; ask [`Self::is_ready`] once per batch.
    fn seal(&mut self, packet: &[u8], out: &mut [u8]) -> Option<usize>;

    /// Takes a datagram of this pair, with reserved bytes zero, of whatever content. `out` has as
    /// many bytes as the datagram, and at least [`OUT_LEN`].
    fn open(&mut self, now: Instant, source: IpAddr, datagram: &[u8], out: &mut [u8]) -> Opened;

    /// Initiator: writes a new initiation to `out` (at least [`OUT_LEN`]) and returns its size,
    /// whatever is on its way. The responses to the latest two are taken, but none after that to the
    /// latest.
    fn initiate(&mut self, now: Instant, out: &mut [u8]) -> Option<usize>;

    /// Ends sessions and returns what is due. To be called every 250 ms to 1 s; `out` as for
    /// [`Self::initiate`].
    fn tick(&mut self, now: Instant, out: &mut [u8]) -> Option<Due>;
}

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
    /// Not taken.
    Refused(Refused),
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
    /// It is for no own key, or not valid.
    Refused(Refused),
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
        /// The initiation that a response is for is not known any more.
        Unexpected = "unexpected_response",
    }
}

//! The own keys for boringtun: which pair an initiation is for, and how a pair's state is made.
//!
//! ```text
//!   initiation ─▶ mac1 of which own key? ─▶ under load: cookie ─▶ afforded? ─▶ peer's key
//! ```
//!
//! The cookie is decided here, before anything costly, and once: [`Tunn`]s of a server count
//! nothing. Those of a client have no such step before them and share the counter of their own key.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use boringtun::noise::errors::WireGuardError;
use boringtun::noise::handshake::parse_handshake_anon;
use boringtun::noise::rate_limiter::RateLimiter;
use boringtun::noise::{Packet, Tunn, TunnResult};
use boringtun::x25519;
use tunnel_proto::datagram::COOKIE_REPLY_LEN;

use crate::keys::{PresharedKey, PrivateKey, PublicKey};
use crate::noise::{Identified, Refused};

use super::{Noise, refusal};

/// Handshakes per second and own key beyond which senders have to show that they receive what is
/// sent to their address. Answering one costs a server 0.5 ms.
pub(crate) const UNDER_LOAD: u64 = 100;

/// The own keys, and the source of [`Noise`] for pairs of keys.
pub(crate) struct Keys {
    own: Vec<Own>,
    public: Vec<PublicKey>,
    under_load: u64,
}

struct Own {
    private: x25519::StaticSecret,
    public: x25519::PublicKey,
    counted: Arc<RateLimiter>,
    uncounted: Arc<RateLimiter>,
}

impl Own {
    fn new(key: &PrivateKey, under_load: u64) -> Self {
        let private = key.secret();
        let public = x25519::PublicKey::from(&private);
        Self {
            private,
            public,
            counted: Arc::new(RateLimiter::new(&public, under_load)),
            uncounted: Arc::new(RateLimiter::new(&public, u64::MAX)),
        }
    }
}

impl Keys {
    /// Returns none. `under_load` is how many handshakes per second and own key are answered without
    /// a cookie.
    pub(crate) fn new(under_load: u64) -> Self {
        Self {
            own: Vec::new(),
            public: Vec::new(),
            under_load,
        }
    }

    /// Replaces the own keys. Pairs that were made before go on with the key they have.
    pub(crate) fn replace(&mut self, keys: &[PrivateKey]) {
        let mut before = std::mem::take(&mut self.own);
        // A key that stays keeps its cookies.
        let kept = keys.iter().map(|key| {
            let public = key.public();
            let at = before
                .iter()
                .position(|own| own.public.as_bytes() == public.as_bytes());
            at.map_or_else(
                || Own::new(key, self.under_load),
                |at| before.swap_remove(at),
            )
        });
        self.own = kept.collect();
        self.public = keys.iter().map(PrivateKey::public).collect();
    }

    /// Returns the public keys, in the order of the private ones.
    pub(crate) fn own(&self) -> &[PublicKey] {
        &self.public
    }

    /// Returns the state of the pair of the own key of this number and the key `theirs`, without a
    /// session; `None` when there is no such own key.
    ///
    /// `index` are the upper 24 bits of every index of this pair, unique in the process. An
    /// `initiator` begins handshakes; otherwise this end only answers.
    pub(crate) fn pair(
        &self,
        own: usize,
        theirs: PublicKey,
        preshared: Option<PresharedKey>,
        index: u32,
        initiator: bool,
        now: Instant,
    ) -> Option<Noise> {
        let own = self.own.get(own)?;
        let limiter = if initiator {
            &own.counted
        } else {
            &own.uncounted
        };
        let maker = Maker {
            private: own.private.clone(),
            theirs: x25519::PublicKey::from(*theirs.as_bytes()),
            preshared,
            index,
            limiter: Arc::clone(limiter),
        };
        Some(Noise::new(maker, initiator, now))
    }

    /// Server: finds out between which keys an initiation is. Its reserved bytes are zero.
    ///
    /// Costs a hash per own key; for an initiation that names an own key also a Diffie-Hellman
    /// (60 µs), unless `afford`, asked before, returns false. Under load the answer is a cookie, written
    /// to `out` (at least 64 bytes). Does not show that the peer sent it: that is [`Noise::open`]'s.
    pub(crate) fn identify(
        &self,
        source: IpAddr,
        initiation: &[u8],
        out: &mut [u8],
        afford: impl FnOnce() -> bool,
    ) -> Result<Identified, Refused> {
        if out.len() < COOKIE_REPLY_LEN {
            return Err(Refused::Room);
        }
        for (number, own) in self.own.iter().enumerate() {
            let verified = own.counted.verify_packet(Some(source), initiation, out);
            let initiation = match verified {
                Ok(Packet::HandshakeInit(initiation)) => initiation,
                Ok(
                    Packet::HandshakeResponse(_)
                    | Packet::PacketCookieReply(_)
                    | Packet::PacketData(_),
                ) => return Err(Refused::Malformed),
                Err(TunnResult::WriteToNetwork(cookie)) => {
                    let len = cookie.len();
                    return Ok(Identified::Cookie { len });
                }
                Err(TunnResult::Err(WireGuardError::InvalidMac)) => continue, // another key's
                Err(TunnResult::Err(error)) => return Err(refusal(&error)),
                Err(
                    TunnResult::Done
                    | TunnResult::WriteToTunnelV4(..)
                    | TunnResult::WriteToTunnelV6(..),
                ) => return Err(Refused::Unexpected),
            };
            if !afford() {
                return Err(Refused::Budget);
            }
            let half = parse_handshake_anon(&own.private, &own.public, &initiation);
            let half = half.map_err(|error| refusal(&error))?;
            return Ok(Identified::Pair {
                own: number,
                theirs: PublicKey::from_bytes(half.peer_static_public),
            });
        }
        Err(Refused::Mac)
    }

    /// To be called about once a second: counts what "under load" means anew.
    pub(crate) fn tick(&self) {
        for own in &self.own {
            own.counted.reset_count();
        }
    }
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Keys").field(&self.public).finish()
    }
}

/// What a [`Tunn`] of one pair of keys is made of, as often as needed.
pub(super) struct Maker {
    private: x25519::StaticSecret,
    theirs: x25519::PublicKey,
    preshared: Option<PresharedKey>,
    index: u32,
    limiter: Arc<RateLimiter>,
}

impl Maker {
    /// Returns one without sessions. Costs two Diffie-Hellmans.
    pub(super) fn tunn(&self) -> Box<Tunn> {
        let preshared = self.preshared.as_ref().map(|key| *key.as_bytes());
        Box::new(Tunn::new(
            self.private.clone(),
            self.theirs,
            preshared,
            None,
            self.index,
            Some(Arc::clone(&self.limiter)),
        ))
    }
}

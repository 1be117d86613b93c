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
use crate::noise::{Identified, Keys, Pairing, Refused};

use super::{Boring, refusal};

/// Handshakes per second and own key beyond which senders have to show that they receive what is
/// sent to their address. Answering one costs a server 0.5 ms.
const UNDER_LOAD: u64 = 100;

/// The own keys.
#[derive(Default)]
pub(crate) struct BoringKeys {
    own: Vec<Own>,
    public: Vec<PublicKey>,
}

struct Own {
    private: x25519::StaticSecret,
    public: x25519::PublicKey,
    counted: Arc<RateLimiter>,
    uncounted: Arc<RateLimiter>,
}

impl Own {
    fn new(key: &PrivateKey) -> Self {
        let private = key.secret();
        let public = x25519::PublicKey::from(&private);
        Self {
            private,
            public,
            counted: Arc::new(RateLimiter::new(&public, UNDER_LOAD)),
            uncounted: Arc::new(RateLimiter::new(&public, u64::MAX)),
        }
    }

    /// Checks `mac1` and, under load, the cookie; then finds out the peer's key. `None` when the
    /// initiation is not for this key.
    fn identify(
        &self,
        source: IpAddr,
        initiation: &[u8],
        out: &mut [u8],
        afford: &mut Option<impl FnOnce() -> bool>,
    ) -> Option<Result<PublicKey, Identified>> {
        let refused = |why| Some(Err(Identified::Refused(why)));
        let verified = self.counted.verify_packet(Some(source), initiation, out);
        let initiation = match verified {
            Ok(Packet::HandshakeInit(initiation)) => initiation,
            Ok(
                Packet::HandshakeResponse(_) | Packet::PacketCookieReply(_) | Packet::PacketData(_),
            ) => return refused(Refused::Malformed),
            Err(TunnResult::WriteToNetwork(cookie)) => {
                let len = cookie.len();
                return Some(Err(Identified::Cookie { len }));
            }
            Err(TunnResult::Err(WireGuardError::InvalidMac)) => return None,
            Err(TunnResult::Err(error)) => return refused(refusal(&error)),
            Err(
                TunnResult::Done
                | TunnResult::WriteToTunnelV4(..)
                | TunnResult::WriteToTunnelV6(..),
            ) => return refused(Refused::Unexpected),
        };
        if !afford.take().is_some_and(|afford| afford()) {
            return refused(Refused::Budget);
        }
        match parse_handshake_anon(&self.private, &self.public, &initiation) {
            Ok(half) => Some(Ok(PublicKey::from_bytes(half.peer_static_public))),
            Err(error) => refused(refusal(&error)),
        }
    }
}

impl Keys for BoringKeys {
    type Noise = Boring;

    fn replace(&mut self, keys: &[PrivateKey]) {
        let mut before = std::mem::take(&mut self.own);
        // A key that stays keeps its cookies.
        let kept = keys.iter().map(|key| {
            let public = key.public();
            let at = before
                .iter()
                .position(|own| own.public.as_bytes() == public.as_bytes());
            at.map_or_else(|| Own::new(key), |at| before.swap_remove(at))
        });
        self.own = kept.collect();
        self.public = keys.iter().map(PrivateKey::public).collect();
    }

    fn own(&self) -> &[PublicKey] {
        &self.public
    }

    fn pair(&self, pairing: &Pairing, now: Instant) -> Option<Boring> {
        let own = self.own.get(pairing.own)?;
        let limiter = if pairing.initiator {
            &own.counted
        } else {
            &own.uncounted
        };
        let maker = Maker {
            private: own.private.clone(),
            theirs: x25519::PublicKey::from(*pairing.theirs.as_bytes()),
            preshared: pairing.preshared.clone(),
            index: pairing.index,
            limiter: Arc::clone(limiter),
        };
        Some(Boring::new(maker, pairing.initiator, now))
    }

    fn identify(
        &mut self,
        source: IpAddr,
        initiation: &[u8],
        out: &mut [u8],
        afford: impl FnOnce() -> bool,
    ) -> Identified {
        if out.len() < COOKIE_REPLY_LEN {
            return Identified::Refused(Refused::Room);
        }
        let mut afford = Some(afford);
        for (number, own) in self.own.iter().enumerate() {
            match own.identify(source, initiation, out, &mut afford) {
                Some(Ok(theirs)) => {
                    let own = number;
                    return Identified::Pair { own, theirs };
                }
                Some(Err(other)) => return other,
                None => {}
            }
        }
        Identified::Refused(Refused::Mac)
    }

    fn tick(&mut self) {
        for own in &self.own {
            own.counted.reset_count();
        }
    }
}

impl std::fmt::Debug for BoringKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("BoringKeys").field(&self.public).finish()
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

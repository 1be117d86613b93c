//! WireGuard's messages without its cryptography, for simulations whose time is not real.
//!
//! ```text
//!   sizes, indices, order of messages, time stamps, counters: as WireGuard has them
//!   keys and contents: in the clear; a sum of both stands for the tag
//! ```
//!
//! Never under load, so it sends no cookies. Deterministic: the same calls give the same bytes. Where
//! boringtun is made anew, with no session and with its first index, this is as well.

use std::net::IpAddr;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use tunnel_proto::datagram::{Header, INITIATION_LEN, Kind, RESPONSE_LEN, counter};

use crate::keys::{PrivateKey, PublicKey};

use super::sessions::{Schedule, Session, Sessions};
use super::{Due, Identified, Keys, Noise, OUT_LEN, Opened, Pairing, Refused, Reply};

/// Header and tag.
const OVERHEAD: usize = 32;
const HEADER: usize = 16;
/// Counters that are distinguished, as in boringtun.
const WINDOW: u64 = 1024;
const STANDS: Duration = Duration::from_secs(5);
const LENIENT_AFTER: Duration = Duration::from_secs(180);

/// The own keys.
#[derive(Debug, Default)]
pub(crate) struct PlainKeys {
    public: Vec<PublicKey>,
    clock_behind: Duration,
}

impl PlainKeys {
    /// Returns keys of a machine whose clock shows a time that was `clock_behind` ago.
    pub(crate) fn with_clock_behind(clock_behind: Duration) -> Self {
        let public = Vec::new();
        Self {
            public,
            clock_behind,
        }
    }
}

impl Keys for PlainKeys {
    type Noise = Plain;

    fn replace(&mut self, keys: &[PrivateKey]) {
        self.public = keys.iter().map(PrivateKey::public).collect();
    }

    fn own(&self) -> &[PublicKey] {
        &self.public
    }

    fn pair(&self, pairing: &Pairing, now: Instant) -> Option<Plain> {
        let own = *self.public.get(pairing.own)?;
        Some(Plain {
            own,
            theirs: pairing.theirs,
            preshared: pairing
                .preshared
                .as_ref()
                .map_or(0, |key| sum(0, key.as_bytes())),
            initiator: pairing.initiator,
            next_index: pairing.index << 8,
            sessions: Sessions::default(),
            counters: Vec::new(),
            schedule: Schedule::default(),
            initiated: Vec::new(),
            stamp: 0,
            clock_behind: self.clock_behind,
            latest: None,
            confirmed: None,
            now,
        })
    }

    fn identify(
        &mut self,
        _source: IpAddr,
        initiation: &[u8],
        _out: &mut [u8],
        afford: impl FnOnce() -> bool,
    ) -> Identified {
        if !is_kind(initiation, Kind::Initiation) {
            return Identified::Refused(Refused::Malformed);
        }
        let for_key = |own: &PublicKey| initiation.get(40..72) == Some(own.as_bytes());
        let Some(own) = self.public.iter().position(for_key) else {
            return Identified::Refused(Refused::Mac);
        };
        if !afford() {
            return Identified::Refused(Refused::Budget);
        }
        let theirs = array::<32>(initiation, 8).map(PublicKey::from_bytes);
        theirs.map_or(Identified::Refused(Refused::Malformed), |theirs| {
            Identified::Pair { own, theirs }
        })
    }

    fn tick(&mut self) {}
}

/// One pair of keys.
#[derive(Debug)]
pub(crate) struct Plain {
    own: PublicKey,
    theirs: PublicKey,
    preshared: u64,
    initiator: bool,
    next_index: u32,
    sessions: Sessions,
    /// One for each session that ever was; simulations are short.
    counters: Vec<Counters>,
    schedule: Schedule,
    /// The latest two initiations.
    initiated: Vec<u32>,
    /// Initiator: of the latest initiation made. Responder: of the latest taken.
    stamp: u64,
    clock_behind: Duration,
    latest: Option<(Instant, Vec<u8>, Vec<u8>, u32)>,
    confirmed: Option<Instant>,
    now: Instant,
}

#[derive(Debug)]
struct Counters {
    local: u32,
    next: u64,
    taken: Vec<u64>,
}

impl Plain {
    fn index(&mut self) -> u32 {
        let low = self.next_index.wrapping_add(1) & 0xff;
        self.next_index = self.next_index & !0xff | low;
        self.next_index
    }

    /// Ends all sessions and restarts the indices, as [`super::boring`] does with a new `Tunn`.
    fn reset(&mut self) {
        self.next_index &= !0xff;
        self.sessions.clear();
        self.counters.clear();
    }

    fn begin(&mut self, local: u32, peer: u32, is_confirmed: bool) {
        let since = self.now;
        self.counters.retain(|counters| counters.local != local);
        self.counters.push(Counters {
            local,
            next: 0,
            taken: Vec::new(),
        });
        self.sessions.begin(Session {
            local,
            peer,
            since,
            is_confirmed,
        });
    }

    /// The sum that ends a message from one key to another.
    fn tag(&self, from: &PublicKey, to: &PublicKey, message: &[u8]) -> u64 {
        let keys = sum(sum(self.preshared, from.as_bytes()), to.as_bytes());
        sum(keys, message)
    }

    fn is_authentic(&self, datagram: &[u8]) -> bool {
        let (message, tag) = datagram.split_at(datagram.len().saturating_sub(8));
        self.tag(&self.theirs, &self.own, message).to_le_bytes() == tag
    }

    fn sign(&self, datagram: &mut [u8]) {
        let (message, tag) = datagram.split_at_mut(datagram.len().saturating_sub(8));
        tag.copy_from_slice(&self.tag(&self.own, &self.theirs, message).to_le_bytes());
    }

    fn open_initiation(&mut self, datagram: &[u8], out: &mut [u8]) -> Opened {
        let reply = Reply::Response;
        if self.initiator {
            return Opened::Refused(Refused::Role);
        }
        let passed = |then| self.now.saturating_duration_since(then);
        if let Some((at, initiation, response, local)) = &self.latest
            && passed(*at) < STANDS
            && self.sessions.find(self.now, *local).is_ok()
            && initiation == datagram
        {
            out[..RESPONSE_LEN].copy_from_slice(response);
            let len = RESPONSE_LEN;
            return Opened::Reply { len, reply };
        }
        // The preshared key is no part of an initiation.
        let stamp = array::<8>(datagram, 72).map_or(0, u64::from_le_bytes);
        let keys = [*self.theirs.as_bytes(), *self.own.as_bytes()].concat();
        let claimed = sum(sum(0, &keys), &datagram[..INITIATION_LEN - 8]);
        if datagram[INITIATION_LEN - 8..] != claimed.to_le_bytes() || datagram[8..72] != keys {
            return Opened::Refused(Refused::Key);
        }
        if stamp <= self.stamp {
            let silent = self
                .confirmed
                .is_none_or(|then| passed(then) > LENIENT_AFTER);
            let latest = self.latest.as_ref();
            if !silent || latest.is_some_and(|(at, ..)| passed(*at) < STANDS) {
                return Opened::Refused(Refused::Stamp);
            }
            self.reset();
        }
        self.stamp = stamp;
        let mut local = self.index();
        let in_use = self.sessions.in_use();
        if in_use.is_some_and(|session| Sessions::share_place(session.local, local)) {
            local = self.index();
        }
        let peer = array(datagram, 4).map_or(0, u32::from_le_bytes);
        self.begin(local, peer, false);
        let response = &mut out[..RESPONSE_LEN];
        response.fill(0);
        response[0] = 2;
        response[4..8].copy_from_slice(&local.to_le_bytes());
        response[8..12].copy_from_slice(&peer.to_le_bytes());
        self.sign(response);
        let latest = (self.now, datagram.to_vec(), response.to_vec(), local);
        self.latest = Some(latest);
        let len = RESPONSE_LEN;
        Opened::Reply { len, reply }
    }

    fn open_response(&mut self, datagram: &[u8], out: &mut [u8]) -> Opened {
        if !self.initiator {
            return Opened::Refused(Refused::Role);
        }
        let peer = array(datagram, 4).map_or(0, u32::from_le_bytes);
        let local = array(datagram, 8).map_or(0, u32::from_le_bytes);
        let initiated = self.initiated.iter().position(|index| *index == local);
        let Some(initiated) = initiated else {
            return Opened::Refused(Refused::Unexpected);
        };
        if !self.is_authentic(datagram) {
            return Opened::Refused(Refused::Key);
        }
        self.initiated.drain(..=initiated);
        self.begin(local, peer, true);
        self.schedule.established(self.now);
        let len = self.seal(&[], out).unwrap_or(0);
        let reply = Reply::Confirmation;
        Opened::Reply { len, reply }
    }

    fn open_data(&mut self, local: u32, datagram: &[u8], out: &mut [u8]) -> Opened {
        if let Err(refused) = self.sessions.find(self.now, local) {
            return Opened::Refused(refused);
        }
        if !self.is_authentic(datagram) {
            return Opened::Refused(Refused::Key);
        }
        let number = counter(datagram).unwrap_or(u64::MAX);
        let mut sessions = self.counters.iter_mut();
        let Some(counters) = sessions.find(|counters| counters.local == local) else {
            return Opened::Refused(Refused::Index);
        };
        let newest = counters.taken.iter().max().copied().unwrap_or(0);
        if counters.taken.contains(&number) || number + WINDOW < newest {
            return Opened::Refused(Refused::Counter);
        }
        counters.taken.retain(|taken| taken + WINDOW >= newest);
        counters.taken.push(number);
        if self.sessions.confirm(local) {
            self.confirmed = Some(self.now);
        }
        let packet = &datagram[HEADER..datagram.len() - (OVERHEAD - HEADER)];
        if packet.is_empty() {
            return Opened::Keepalive;
        }
        self.schedule.heard(self.now);
        let len = packet.len();
        out[..len].copy_from_slice(packet);
        Opened::Packet { len }
    }
}

impl Noise for Plain {
    fn is_ready(&self, now: Instant) -> bool {
        let in_use = self.sessions.in_use();
        in_use.is_some_and(|session| session.is_live(now))
    }

    fn handshake_age(&self, now: Instant) -> Option<Duration> {
        let session = self.sessions.in_use()?;
        let age = now.saturating_duration_since(session.since);
        session.is_live(now).then_some(age)
    }

    fn session_order(&self, local: u32) -> Option<u64> {
        self.sessions.order_of(local)
    }

    fn seal(&mut self, packet: &[u8], out: &mut [u8]) -> Option<usize> {
        let session = *self.sessions.in_use()?;
        let out = out.get_mut(..packet.len() + OVERHEAD)?;
        let mut sessions = self.counters.iter_mut();
        let counters = sessions.find(|counters| counters.local == session.local)?;
        out.fill(0);
        out[0] = 4;
        out[4..8].copy_from_slice(&session.peer.to_le_bytes());
        out[8..HEADER].copy_from_slice(&counters.next.to_le_bytes());
        out[HEADER..HEADER + packet.len()].copy_from_slice(packet);
        counters.next += 1;
        self.sign(out);
        self.schedule.sent();
        Some(out.len())
    }

    fn open(&mut self, now: Instant, _source: IpAddr, datagram: &[u8], out: &mut [u8]) -> Opened {
        self.now = now;
        if out.len() < datagram.len().max(OUT_LEN) {
            return Opened::Refused(Refused::Room);
        }
        match Header::parse(datagram) {
            Ok(header) if header.route.is_none() => match (header.kind, header.receiver) {
                (Kind::Initiation, _) => self.open_initiation(datagram, out),
                (Kind::Response, _) => self.open_response(datagram, out),
                (Kind::CookieReply, _) => Opened::Refused(Refused::Unexpected),
                (Kind::Data, Some(local)) => self.open_data(local, datagram, out),
                (Kind::Data, None) => Opened::Refused(Refused::Malformed),
            },
            Ok(_) | Err(_) => Opened::Refused(Refused::Malformed),
        }
    }

    fn initiate(&mut self, now: Instant, out: &mut [u8]) -> Option<usize> {
        self.now = now;
        let out = out.get_mut(..INITIATION_LEN).filter(|_| self.initiator)?;
        let local = self.index();
        self.initiated.push(local);
        let surplus = self.initiated.len().saturating_sub(2);
        self.initiated.drain(..surplus);
        self.stamp = nanos(now, self.clock_behind).max(self.stamp + 1);
        out.fill(0);
        out[0] = 1;
        out[4..8].copy_from_slice(&local.to_le_bytes());
        out[8..40].copy_from_slice(self.own.as_bytes());
        out[40..72].copy_from_slice(self.theirs.as_bytes());
        out[72..80].copy_from_slice(&self.stamp.to_le_bytes());
        let keys = [*self.own.as_bytes(), *self.theirs.as_bytes()].concat();
        let tag = sum(sum(0, &keys), &out[..INITIATION_LEN - 8]);
        out[INITIATION_LEN - 8..].copy_from_slice(&tag.to_le_bytes());
        self.schedule.initiated(now);
        Some(INITIATION_LEN)
    }

    fn tick(&mut self, now: Instant, out: &mut [u8]) -> Option<Due> {
        self.now = now;
        self.sessions.end_old(now);
        if self.schedule.is_initiation_due(now) {
            return self.initiate(now, out).map(Due::Initiation);
        }
        if self.schedule.is_keepalive_due(now) {
            return self.seal(&[], out).map(Due::Keepalive);
        }
        None
    }
}

fn is_kind(datagram: &[u8], kind: Kind) -> bool {
    Header::parse(datagram).is_ok_and(|header| header.kind == kind)
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

/// FNV-1a, from where another sum ended.
fn sum(before: u64, bytes: &[u8]) -> u64 {
    let start = before ^ 0xcbf2_9ce4_8422_2325;
    bytes.iter().fold(start, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    })
}

/// A timestamp: ordered within this process.
fn nanos(now: Instant, behind: Duration) -> u64 {
    static BASE: OnceLock<Instant> = OnceLock::new();
    let base = *BASE.get_or_init(|| now);
    let after = now.saturating_duration_since(base).as_nanos();
    let before = (base.saturating_duration_since(now) + behind).as_nanos();
    let middle = 1 << 63;
    middle + u64::try_from(after).unwrap() - u64::try_from(before).unwrap()
}

//! WireGuard by boringtun, in a harness.
//!
//! ```text
//!   initiation ─▶ gate: authentic and new? ─▶ advance the clock ─▶ main ─▶ response
//!   response, data ─────────────────────────────────────────────▶ main ─▶ session, packet
//! ```
//!
//! boringtun's [`Tunn`] keeps sessions, but also timers that would start handshakes from either end
//! and give everything up after 90 s without a response, working sessions included. They run in
//! `update_timers` alone, which also moves the clock that orders sessions by age;
//! so it cannot be left out: without it, packets that are late at a rekey lead back to the old
//! session for good. Hence the rules here:
//!
//! - It is called only before something that makes its timers harmless. At the initiator: before an
//!   initiation, when none is on its way, or when there is no session to lose. At the responder:
//!   before an initiation that is known to be authentic, which ends whatever the timers began.
//! - To know that, the responder has a second `Tunn`, the gate, which sees initiations first. It
//!   never has packets, and its responses are thrown away. A forged or repeated initiation gets no
//!   further.
//! - What was established when is recorded here, with the caller's time ([`Sessions`]); packets for
//!   other indices do not reach boringtun, and nothing is sealed that the record does not have.
//! - boringtun is asked to seal only when there is a session, because otherwise it queues the packet
//!   and starts a handshake.
//!
//! One deviation from WireGuard: an initiation older than one that was taken is refused, because it
//! may be a copy; but a client whose clock went back would be locked out until the server restarts.
//! So it is taken when no session was confirmed for 180 s and no initiation answered for 5 s. A copy
//! then leads to a response and a session that cannot be used.
//!
//! boringtun keeps a copy of the preshared key that it does not overwrite at the end.

mod keys;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::time::{Duration, Instant};

use boringtun::noise::errors::WireGuardError;
use boringtun::noise::{Tunn, TunnResult};
use tunnel_proto::datagram::{self, DATA_MIN_LEN, Header, INITIATION_LEN, Kind, RESPONSE_LEN};

use super::sessions::{Schedule, Session, Sessions};
use super::{Due, OUT_LEN, Opened, Refused, Reply};

use keys::Maker;
pub(crate) use keys::{Keys, UNDER_LOAD};

/// Bytes around a sealed packet (WireGuard paper §5.4.6).
const OVERHEAD: usize = DATA_MIN_LEN;
/// How long without a confirmed session an older initiation is taken.
const LENIENT_AFTER: Duration = Duration::from_secs(180);
/// How long after an answer it is not, and for how long the same initiation gets the same response:
/// it is sent by all links, and the response to the first may be lost.
const ANSWER_STANDS: Duration = Duration::from_secs(5);
/// From here on a counter may not be used (paper §6.1), and boringtun's arithmetic would overflow.
const COUNTER_END: u64 = u64::MAX - (1 << 13);

/// One pair of keys: its handshakes and sessions.
pub(crate) struct Noise {
    main: Box<Tunn>,
    role: Role,
    maker: Maker,
    sessions: Sessions,
    schedule: Schedule,
    /// The caller's time at the latest call of any kind.
    now: Instant,
}

enum Role {
    Initiator {
        /// The caller's time when `main`'s clock was last advanced. Sessions count from here.
        clock: Instant,
        /// The index of the initiation that `main` waits for a response to.
        awaited: Option<u32>,
    },
    Responder {
        gate: Box<Tunn>,
        latest: Option<Box<Answer>>,
        confirmed: Option<Instant>,
    },
}

/// The latest initiation that was answered.
struct Answer {
    at: Instant,
    initiation: [u8; INITIATION_LEN],
    response: [u8; RESPONSE_LEN],
    local: u32,
}

impl Noise {
    fn new(maker: Maker, initiator: bool, now: Instant) -> Self {
        let role = if initiator {
            Role::Initiator {
                clock: now,
                awaited: None,
            }
        } else {
            Role::Responder {
                gate: maker.tunn(),
                latest: None,
                confirmed: None,
            }
        };
        Self {
            main: maker.tunn(),
            role,
            maker,
            sessions: Sessions::default(),
            schedule: Schedule::default(),
            now,
        }
    }

    /// Returns whether packets can be sealed: there is a session, younger than 180 s, and the peer
    /// is known to have it.
    pub(crate) fn is_ready(&self, now: Instant) -> bool {
        let in_use = self.sessions.in_use();
        in_use.is_some_and(|session| session.is_live(now))
    }

    /// Returns the age of the session that packets are sealed with.
    pub(crate) fn handshake_age(&self, now: Instant) -> Option<Duration> {
        let session = self.sessions.in_use()?;
        let age = now.saturating_duration_since(session.since);
        session.is_live(now).then_some(age)
    }

    /// Returns the place of the session with this own index in the order in which the pair's sessions
    /// began. Never repeats while the process runs, although indices do; `None` when there is no
    /// such session.
    pub(crate) fn session_order(&self, local: u32) -> Option<u64> {
        self.sessions.order_of(local)
    }

    /// Seals a packet (empty: a keepalive) into `out` and returns the size of the datagram, 32 more
    /// than the packet's. `None` without a session, and when `out` is too small.
    ///
    /// Goes by the time of the latest other call; ask [`Self::is_ready`] once per batch.
    pub(crate) fn seal(&mut self, packet: &[u8], out: &mut [u8]) -> Option<usize> {
        let room = packet.len().checked_add(OVERHEAD)?;
        if out.len() < room || self.sessions.in_use().is_none() {
            return None;
        }
        let sealed = outcome(self.main.encapsulate(packet, out));
        if sealed != Ok(Outcome::Network(room)) {
            self.restart();
            return None;
        }
        let peer = out.get(4..8).and_then(|index| index.first_chunk().copied());
        let peer = peer.map_or(0, u32::from_le_bytes);
        self.schedule.sent();
        self.sessions.is_sealed_with(peer).then_some(room)
    }

    /// Takes a datagram of this pair, with reserved bytes zero, of whatever content. `out` has as
    /// many bytes as the datagram, and at least [`OUT_LEN`].
    pub(crate) fn open(
        &mut self,
        now: Instant,
        source: IpAddr,
        datagram: &[u8],
        out: &mut [u8],
    ) -> Result<Opened, Refused> {
        self.now = now;
        if out.len() < datagram.len().max(OUT_LEN) {
            return Err(Refused::Room);
        }
        let header = match Header::parse(datagram) {
            Ok(header) if header.route.is_none() => header,
            Ok(_) | Err(_) => return Err(Refused::Malformed),
        };
        match (header.kind, header.receiver) {
            (Kind::Initiation, _) => self.open_initiation(source, datagram, out),
            (Kind::Response, _) => self.open_response(source, header, datagram, out),
            (Kind::CookieReply, _) => self.open_cookie(source, datagram, out),
            (Kind::Data, Some(local)) => self.open_data(source, local, datagram, out),
            (Kind::Data, None) => Err(Refused::Malformed),
        }
    }

    /// Initiator: writes a new initiation to `out` (at least [`OUT_LEN`]) and returns its size,
    /// whatever is on its way. The responses to the latest two are taken, but none after that to the
    /// latest.
    pub(crate) fn initiate(&mut self, now: Instant, out: &mut [u8]) -> Option<usize> {
        self.now = now;
        let Role::Initiator { clock, awaited } = &mut self.role else {
            return None;
        };
        if out.len() < OUT_LEN {
            return None;
        }
        let mut len = None;
        if awaited.is_none() || !self.sessions.is_any_live(now) {
            *clock = now;
            len = initiation(self.main.update_timers(out));
        }
        let len = len.or_else(|| initiation(self.main.format_handshake_initiation(out, true)))?;
        *awaited = Header::parse(out.get(..len)?).ok()?.sender;
        self.schedule.initiated(now);
        Some(len)
    }

    /// Ends sessions and returns what is due. To be called every 250 ms to 1 s; `out` as for
    /// [`Self::initiate`].
    pub(crate) fn tick(&mut self, now: Instant, out: &mut [u8]) -> Option<Due> {
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

    /// Begins anew after boringtun did what it should not: no session is left.
    fn restart(&mut self) {
        tracing::warn!("session state was lost; restarting the handshake");
        self.main = self.maker.tunn();
        self.sessions.clear();
        if let Role::Initiator { clock, awaited } = &mut self.role {
            (*clock, *awaited) = (self.now, None);
            self.schedule.hurry(self.now);
        }
    }

    fn open_initiation(
        &mut self,
        source: IpAddr,
        datagram: &[u8],
        out: &mut [u8],
    ) -> Result<Opened, Refused> {
        let reply = Reply::Response;
        if let Some(len) = self.repeat(datagram, out) {
            return Ok(Opened::Reply { len, reply });
        }
        self.admit(source, datagram)?;
        // What the timers want is undone by the initiation that follows.
        let _ = self.main.update_timers(&mut [0; OUT_LEN]);
        self.spare_session_in_use();
        let outcome = outcome(self.main.decapsulate(Some(source), datagram, out));
        match (outcome, out.first_chunk()) {
            (Ok(Outcome::Network(len @ RESPONSE_LEN)), Some(response))
                if self.answered(datagram, response).is_some() =>
            {
                Ok(Opened::Reply { len, reply })
            }
            // The gate let it pass: this cannot be, and what `main` is up to now is not known.
            _ => {
                self.restart();
                Err(Refused::Unexpected)
            }
        }
    }

    /// Records a session that the peer has to confirm. `None` when it was not answered so.
    fn answered(&mut self, initiation: &[u8], response: &[u8; RESPONSE_LEN]) -> Option<()> {
        let header = Header::parse(response).ok()?;
        let (local, peer) = header.sender.zip(header.receiver)?;
        let Role::Responder { latest, .. } = &mut self.role else {
            return None;
        };
        *latest = Some(Box::new(Answer {
            at: self.now,
            initiation: *initiation.first_chunk()?,
            response: *response,
            local,
        }));
        self.sessions.begin(Session {
            local,
            peer,
            since: self.now,
            is_confirmed: false,
        });
        Some(())
    }

    /// Has boringtun count one index further when the next session would take the place of the one
    /// in use: eight handshakes may fail before one is confirmed. To be called where the timers may
    /// be.
    fn spare_session_in_use(&mut self) {
        let Role::Responder { latest, .. } = &self.role else {
            return;
        };
        let next = latest.as_ref().map(|latest| latest.local.wrapping_add(1));
        let in_use = self
            .sessions
            .in_use()
            .filter(|session| session.is_live(self.now));
        if let (Some(next), Some(session)) = (next, in_use)
            && Sessions::share_place(next, session.local)
        {
            let mut scratch = [0; OUT_LEN];
            let _ = self.main.format_handshake_initiation(&mut scratch, true);
        }
    }

    /// Writes the response again when the initiation is the one that was answered last.
    fn repeat(&self, datagram: &[u8], out: &mut [u8]) -> Option<usize> {
        let Role::Responder { latest, .. } = &self.role else {
            return None;
        };
        let latest = latest.as_ref()?;
        let stands = self.now.saturating_duration_since(latest.at) < ANSWER_STANDS;
        let known = self.sessions.find(self.now, latest.local).is_ok();
        if !stands || !known || datagram != latest.initiation {
            return None;
        }
        *out.first_chunk_mut()? = latest.response;
        Some(RESPONSE_LEN)
    }

    /// Finds out whether the initiation is authentic and new.
    fn admit(&mut self, source: IpAddr, datagram: &[u8]) -> Result<usize, Refused> {
        let Role::Responder {
            gate,
            latest,
            confirmed,
        } = &mut self.role
        else {
            return Err(Refused::Role);
        };
        let passed = |then: Instant| self.now.saturating_duration_since(then);
        let answered = latest.as_ref().map(|latest| passed(latest.at));
        // Whether it may be older than one that was taken.
        let lenient = confirmed.is_none_or(|then| passed(then) > LENIENT_AFTER)
            && answered.is_none_or(|passed| passed >= ANSWER_STANDS);
        let mut scratch = [0; OUT_LEN];
        let mut knock = |gate: &mut Tunn| {
            outcome(gate.decapsulate(Some(source), datagram, &mut scratch))?.network()
        };
        match knock(gate) {
            Err(Refused::Stamp) if lenient => {
                *gate = self.maker.tunn();
                self.main = self.maker.tunn();
                self.sessions.clear();
                knock(gate)
            }
            admitted => admitted,
        }
    }

    fn open_response(
        &mut self,
        source: IpAddr,
        header: Header,
        datagram: &[u8],
        out: &mut [u8],
    ) -> Result<Opened, Refused> {
        let Role::Initiator { clock, awaited } = &mut self.role else {
            return Err(Refused::Role);
        };
        // boringtun would go on with the older session of a response that was overtaken, while the
        // server follows the newer one.
        if awaited.is_none() {
            return Err(Refused::Unexpected);
        }
        let indices = header.receiver.zip(header.sender);
        let (local, peer) = indices.ok_or(Refused::Malformed)?;
        let len = outcome(self.main.decapsulate(Some(source), datagram, out))?.network()?;
        if len != OVERHEAD {
            let reply = Reply::Cookie;
            return Ok(Opened::Reply { len, reply });
        }
        if *awaited == Some(local) {
            *awaited = None;
        }
        let since = *clock;
        self.sessions.begin(Session {
            local,
            peer,
            since,
            is_confirmed: true,
        });
        self.schedule.established(since);
        self.drain(source);
        let reply = Reply::Confirmation;
        Ok(Opened::Reply { len, reply })
    }

    /// Empties boringtun's queue. There is at most the keepalive that its timers wanted to send when
    /// the last session had just ended.
    fn drain(&mut self, source: IpAddr) {
        for _ in 0..4 {
            let mut scratch = [0; OUT_LEN];
            let queued = self.main.decapsulate(Some(source), &[], &mut scratch);
            if matches!(outcome(queued), Ok(Outcome::Done) | Err(_)) {
                return;
            }
        }
    }

    fn open_cookie(
        &mut self,
        source: IpAddr,
        datagram: &[u8],
        out: &mut [u8],
    ) -> Result<Opened, Refused> {
        match outcome(self.main.decapsulate(Some(source), datagram, out)).map_err(bad_tag)? {
            Outcome::Done => {
                self.schedule.cookie_came(self.now);
                Ok(Opened::Cookie)
            }
            Outcome::Network(_) | Outcome::Packet(_) => Err(Refused::Unexpected),
        }
    }

    fn open_data(
        &mut self,
        source: IpAddr,
        local: u32,
        datagram: &[u8],
        out: &mut [u8],
    ) -> Result<Opened, Refused> {
        if datagram::counter(datagram).is_none_or(|counter| counter >= COUNTER_END) {
            return Err(Refused::Counter);
        }
        self.sessions.find(self.now, local)?;
        let opened = match outcome(self.main.decapsulate(Some(source), datagram, out)) {
            Ok(Outcome::Done) => Ok(Opened::Keepalive),
            Ok(Outcome::Packet(len)) => Ok(Opened::Packet { len }),
            Ok(Outcome::Network(_)) => return Err(Refused::Unexpected),
            // Returned for a well-formed datagram only once it was opened.
            Err(Refused::Malformed) => Err(Refused::NotIp),
            Err(refused) => return Err(bad_tag(refused)),
        };
        if opened != Ok(Opened::Keepalive) {
            self.schedule.heard(self.now);
        }
        if self.sessions.confirm(local)
            && let Role::Responder { confirmed, .. } = &mut self.role
        {
            *confirmed = Some(self.now);
        }
        opened
    }
}

impl std::fmt::Debug for Noise {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let debug = &mut f.debug_struct("Noise");
        debug
            .field("sessions", &self.sessions)
            .finish_non_exhaustive()
    }
}

/// A [`TunnResult`] without its loan.
#[derive(PartialEq, Eq)]
enum Outcome {
    Done,
    Network(usize),
    Packet(usize),
}

impl Outcome {
    fn network(self) -> Result<usize, Refused> {
        match self {
            Self::Network(len) => Ok(len),
            Self::Done | Self::Packet(_) => Err(Refused::Unexpected),
        }
    }
}

fn initiation(result: TunnResult<'_>) -> Option<usize> {
    let written = outcome(result).and_then(Outcome::network).ok();
    written.filter(|len| *len == INITIATION_LEN)
}

fn outcome(result: TunnResult<'_>) -> Result<Outcome, Refused> {
    Ok(match result {
        TunnResult::Done => Outcome::Done,
        TunnResult::Err(error) => return Err(refusal(&error)),
        TunnResult::WriteToNetwork(bytes) => Outcome::Network(bytes.len()),
        TunnResult::WriteToTunnelV4(packet, _) | TunnResult::WriteToTunnelV6(packet, _) => {
            Outcome::Packet(packet.len())
        }
    })
}

/// Tells what is no handshake from one with a wrong key: an index can be guessed.
fn bad_tag(refused: Refused) -> Refused {
    if refused == Refused::Key {
        Refused::Tag
    } else {
        refused
    }
}

fn refusal(error: &WireGuardError) -> Refused {
    match error {
        WireGuardError::DestinationBufferTooSmall => Refused::Room,
        WireGuardError::DuplicateCounter | WireGuardError::InvalidCounter => Refused::Counter,
        WireGuardError::InvalidAeadTag | WireGuardError::WrongKey => Refused::Key,
        WireGuardError::InvalidMac => Refused::Mac,
        WireGuardError::InvalidTai64nTimestamp | WireGuardError::WrongTai64nTimestamp => {
            Refused::Stamp
        }
        WireGuardError::NoCurrentSession | WireGuardError::WrongIndex => Refused::Index,
        WireGuardError::IncorrectPacketLength
        | WireGuardError::InvalidPacket
        | WireGuardError::WrongPacketType => Refused::Malformed,
        WireGuardError::UnderLoad => Refused::Budget,
        WireGuardError::ConnectionExpired
        | WireGuardError::LockFailed
        | WireGuardError::UnexpectedPacket => Refused::Unexpected,
    }
}

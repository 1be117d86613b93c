//! Chooses the transport of a tunnel, and finds how large its packets may be.
//!
//! ```text
//!            ┌─ Dial tcp ──▶ connected ──▶ probes ─┐
//! Selector ──┤                                     ├──▶ Use(link): where to send
//!            └─ Dial udp ──▶ connected ──▶ probes ─┘
//! per link: Mtu ──▶ Probe of a size ──▶ Changed(mtu) | Unfit
//! ```
//!
//! TCP and UDP are dialed together, whichever answers first is used, and UDP is used as soon as
//! it answers. The other stays connected and is probed slowly, so that a fall-back needs no
//! connecting: a new link is up before the old one is left, and packets are taken from every link
//! that is up. Probes that are not answered decide that a link is dead: with the default times
//! within two seconds unless its round trip is long. After UDP died it is used again only when it was
//! steady for a while, longer each time.
//!
//! What a link is (a socket and a WireGuard session on it), how probes look, and the queue of each
//! link are the caller's. After every `handle_…`, take all events and ask for the next deadline.

mod event;
mod mtu;
mod probe;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::wire::mix;

pub use event::{CloseReason, Event};
pub use mtu::{Mtu, MtuEvent};
pub use probe::{LinkStats, ProbeParams, Prober};

/// What carries the datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Transport {
    /// Frames on a TCP stream.
    Tcp,
    /// UDP.
    Udp,
}

/// Which transports may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Both; UDP is preferred.
    Auto,
    /// TCP alone.
    Tcp,
    /// UDP alone.
    Udp,
}

impl Mode {
    fn allows(self, transport: Transport) -> bool {
        matches!(
            (self, transport),
            (Self::Auto, _) | (Self::Tcp, Transport::Tcp) | (Self::Udp, Transport::Udp)
        )
    }
}

/// One attempt to connect and what becomes of it; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u64);

/// Times of a [`Selector`], and which transports it may use.
#[derive(Clone, Copy, Debug)]
pub struct Params {
    /// Which transports may be used.
    pub mode: Mode,
    /// How links are probed.
    pub probes: ProbeParams,
    /// When an attempt to connect is given up.
    pub dial_timeout: Duration,
    /// The first pause after a failure, doubled for each further one.
    pub retry_first: Duration,
    /// The longest pause before TCP is tried again.
    pub retry_tcp: Duration,
    /// The longest pause before UDP is tried again: how late an opened firewall is noticed.
    pub retry_udp: Duration,
}

/// For how long UDP is not preferred after it died, doubled when it dies again within [`FLAP_MEMORY`].
const HOLD_FIRST: Duration = Duration::from_secs(5);
/// The longest such time.
const MAX_HOLD: Duration = Duration::from_secs(60);
/// After this long without a death the next one counts as the first.
const FLAP_MEMORY: Duration = Duration::from_secs(300);
/// When UDP is tried again after its packets turned out to be too small.
const UNFIT_PAUSE: Duration = Duration::from_secs(60);

impl Default for Params {
    fn default() -> Self {
        Self {
            mode: Mode::Auto,
            probes: ProbeParams::default(),
            dial_timeout: Duration::from_secs(6),
            retry_first: Duration::from_millis(250),
            retry_tcp: Duration::from_secs(5),
            retry_udp: Duration::from_secs(15),
        }
    }
}

#[derive(Debug)]
struct Link {
    id: LinkId,
    since: Instant,
    /// `None` while it is connecting.
    prober: Option<Prober>,
}

/// One transport: its link, and when to try again.
#[derive(Debug)]
struct Slot {
    transport: Transport,
    link: Option<Link>,
    retry_at: Option<Instant>,
    pause: Duration,
}

/// The state machine of a tunnel's transports.
#[derive(Debug)]
pub struct Selector {
    params: Params,
    slots: [Slot; 2],
    active: Option<LinkId>,
    hold: Duration,
    hold_until: Option<Instant>,
    died_at: Option<Instant>,
    last_id: u64,
    secret: u64,
    events: VecDeque<Event>,
}

impl Selector {
    /// Returns a selector that has begun to dial; the numbers of its links follow `last`. `secret` is a
    /// random number from which pauses are spread, so that many tunnels do not come back in one moment.
    #[must_use]
    pub fn new(params: Params, secret: u64, last: LinkId, now: Instant) -> Self {
        let slot = |transport| Slot {
            transport,
            link: None,
            retry_at: params.mode.allows(transport).then_some(now),
            pause: params.retry_first,
        };
        let mut selector = Self {
            slots: [Transport::Tcp, Transport::Udp].map(slot),
            active: None,
            hold: HOLD_FIRST,
            hold_until: None,
            died_at: None,
            last_id: last.0,
            secret,
            events: VecDeque::new(),
            params,
        };
        selector.handle_timeout(now);
        selector
    }

    /// Records that a link is connected and its peer is authenticated.
    pub fn handle_connected(&mut self, now: Instant, id: LinkId) {
        let probes = self.params.probes;
        if let Some(link) = self.link_mut(id) {
            let connecting = now.saturating_duration_since(link.since);
            if link.prober.is_none() {
                link.since = now;
                link.prober = Some(Prober::new(probes, connecting, now));
            }
        }
        self.handle_timeout(now);
    }

    /// Records that a link failed, while it was connecting or later.
    pub fn handle_failed(&mut self, now: Instant, id: LinkId) {
        self.end(now, id, CloseReason::Failed);
        self.handle_timeout(now);
    }

    /// Records that a link cannot carry packets of a useful size.
    pub fn handle_unfit(&mut self, now: Instant, id: LinkId) {
        self.end(now, id, CloseReason::Unfit);
        self.handle_timeout(now);
    }

    /// Records the answer to a probe.
    pub fn handle_pong(&mut self, now: Instant, id: LinkId, probe: u32) {
        if let Some(prober) = self.link_mut(id).and_then(|link| link.prober.as_mut()) {
            prober.answered(now, probe);
        }
        self.handle_timeout(now);
    }

    /// Records an authentic packet on a link. Cheap; to be called once for each batch.
    pub fn handle_received(&mut self, now: Instant, id: LinkId) {
        if let Some(prober) = self.link_mut(id).and_then(|link| link.prober.as_mut()) {
            prober.received(now);
        }
    }

    /// Does what is due: closes what is dead, dials, probes, chooses.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.hold_until = self.hold_until.filter(|until| now < *until);
        self.close_dead(now);
        self.dial(now);
        self.probe(now);
        self.choose(now);
    }

    /// Returns when [`Selector::handle_timeout`] is to be called next, at the latest.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let of_slot = |slot: &Slot| match &slot.link {
            Some(link) => Some(match &link.prober {
                Some(prober) => prober.deadline(),
                None => link.since + self.params.dial_timeout,
            }),
            None => slot.retry_at,
        };
        let hold = self.hold_until.filter(|_| self.udp_waits());
        self.slots.iter().filter_map(of_slot).chain(hold).min()
    }

    /// Returns the next thing to do.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Returns the link in use.
    #[must_use]
    pub fn active(&self) -> Option<(LinkId, Transport)> {
        let id = self.active?;
        let slot = self.slots.iter().find(|slot| slot.has(id))?;
        Some((id, slot.transport))
    }

    /// Returns the number that was given to a link last.
    #[must_use]
    pub fn last_link(&self) -> LinkId {
        LinkId(self.last_id)
    }

    /// Returns whether a link was asked for and is neither connected nor given up.
    #[must_use]
    pub fn awaits(&self, id: LinkId) -> bool {
        let mut links = self.slots.iter().filter_map(|slot| slot.link.as_ref());
        links.any(|link| link.id == id && link.prober.is_none())
    }

    /// Returns what is known of a link's quality; `None` while it is connecting and once closed.
    #[must_use]
    pub fn stats(&self, id: LinkId) -> Option<LinkStats> {
        let mut slots = self.slots.iter();
        let slot = slots.find(|slot| slot.has(id))?;
        Some(slot.link.as_ref()?.prober.as_ref()?.stats())
    }

    fn link_mut(&mut self, id: LinkId) -> Option<&mut Link> {
        let mut slots = self.slots.iter_mut();
        slots.find(|slot| slot.has(id))?.link.as_mut()
    }

    /// Closes links that are dead or never came up.
    fn close_dead(&mut self, now: Instant) {
        let mut ends = [None; 2];
        let links = self.slots.iter_mut().filter_map(|slot| slot.link.as_mut());
        for (end, link) in ends.iter_mut().zip(links) {
            let dead = link.prober.as_mut().map(|prober| prober.is_dead(now));
            let timed_out = now >= link.since + self.params.dial_timeout;
            let reason = match dead {
                Some(dead) => dead.then_some(CloseReason::Dead),
                None => timed_out.then_some(CloseReason::Timeout),
            };
            *end = reason.map(|reason| (link.id, reason));
        }
        for (id, reason) in ends.into_iter().flatten() {
            self.end(now, id, reason);
        }
    }

    /// Closes a link and plans the next attempt.
    fn end(&mut self, now: Instant, id: LinkId, reason: CloseReason) {
        let params = self.params;
        let Some(slot) = self.slots.iter_mut().find(|slot| slot.has(id)) else {
            return;
        };
        let Some(link) = slot.link.take() else { return };
        self.events.push_back(Event::Close { link: id, reason });
        let steady = link.prober.is_some() && now >= link.since + HOLD_FIRST;
        let longest = match slot.transport {
            Transport::Tcp => params.retry_tcp,
            Transport::Udp => params.retry_udp,
        };
        let pause = if steady {
            params.retry_first
        } else {
            slot.pause
        };
        slot.pause = (pause * 2).min(longest);
        let pause = if reason == CloseReason::Unfit {
            UNFIT_PAUSE
        } else {
            spread(pause, mix(self.secret, id.0))
        };
        slot.retry_at = Some(now + pause);
        let was_up = link.prober.is_some() && slot.transport == Transport::Udp;
        if was_up && reason != CloseReason::Unfit {
            self.hold_udp(now);
        }
    }

    /// Stops preferring UDP for a while.
    fn hold_udp(&mut self, now: Instant) {
        let again = self
            .died_at
            .is_some_and(|died_at| now < died_at + FLAP_MEMORY);
        self.hold = if again {
            (self.hold * 2).min(MAX_HOLD)
        } else {
            HOLD_FIRST
        };
        self.died_at = Some(now);
        self.hold_until = Some(now + self.hold);
    }

    fn dial(&mut self, now: Instant) {
        for slot in &mut self.slots {
            let due = slot.retry_at.is_some_and(|at| now >= at);
            if slot.link.is_some() || !due {
                continue;
            }
            self.last_id += 1;
            let link = LinkId(self.last_id);
            slot.link = Some(Link {
                id: link,
                since: now,
                prober: None,
            });
            let transport = slot.transport;
            self.events.push_back(Event::Dial { link, transport });
        }
    }

    fn probe(&mut self, now: Instant) {
        for link in self.slots.iter_mut().filter_map(|slot| slot.link.as_mut()) {
            let Some(prober) = &mut link.prober else {
                continue;
            };
            prober.set_active(now, self.active == Some(link.id));
            if let Some(id) = prober.due(now) {
                let link = link.id;
                self.events.push_back(Event::Probe { link, id });
            }
        }
    }

    /// Uses the best link.
    fn choose(&mut self, now: Instant) {
        let rank = |slot: &Slot| {
            let link = slot.link.as_ref()?;
            let up = link.prober.as_ref()?;
            let preferred = slot.transport == Transport::Udp && self.hold_until.is_none();
            // A link that stopped answering is no place to move to.
            let answering = !up.is_suspect() || self.active == Some(link.id);
            let tcp = slot.transport == Transport::Tcp;
            Some((answering, preferred, tcp, link.id, slot.transport))
        };
        let best = self.slots.iter().filter_map(rank).max();
        let best = best.map(|(.., id, transport)| (id, transport));
        if best.map(|(id, _)| id) != self.active {
            self.active = best.map(|(id, _)| id);
            self.events.push_back(match best {
                Some((link, transport)) => Event::Use { link, transport },
                None => Event::Down,
            });
            self.probe(now);
        }
    }

    /// Returns whether UDP is up and only waits to be preferred.
    fn udp_waits(&self) -> bool {
        let [tcp, udp] = &self.slots;
        tcp.is_up() && udp.is_up() && self.active != udp.link.as_ref().map(|link| link.id)
    }
}

impl Slot {
    fn is_up(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.prober.is_some())
    }

    fn has(&self, id: LinkId) -> bool {
        self.link.as_ref().is_some_and(|link| link.id == id)
    }
}

/// Half to all of a pause.
fn spread(pause: Duration, random: u64) -> Duration {
    let part = u32::try_from(random & 0xff).unwrap_or(0);
    pause / 2 + (pause / 2) * part / 255
}

//! Two ends of a stream, the stream between them, and sockets that check every byte.
//!
//! ```text
//! frontends ⇄ server's link ──to_agent──▶ agent's link ⇄ destinations
//!                           ◀─to_server──
//! ```
//!
//! Time is a field, and a packet moves only when told to, so a test decides every order there can
//! be. Each byte says by its value which tunnel, direction and place it belongs to.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use knp_proto::{
    Budget, DialId, DialTarget, EndReason, Event, Extensions, Link, LinkConfig, Packet, Read,
    STREAM_WINDOW, StreamId, Tenant, TenantId, TenantLimits, TunnelId,
};

#[expect(
    clippy::disallowed_methods,
    reason = "any instant will do to count from"
)]
pub(crate) fn start() -> Instant {
    Instant::now()
}

pub(crate) fn tenant(name: &str, limits: TenantLimits, budget: usize) -> Arc<Tenant> {
    Tenant::new(TenantId::new(name), limits, Budget::new(budget))
}

/// Limits under which nothing is refused.
pub(crate) fn generous() -> TenantLimits {
    TenantLimits {
        buffered_bytes: 256 << 20,
        dials_per_second: 0,
        ..TenantLimits::default()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum End {
    Server,
    Agent,
}

impl End {
    pub(crate) fn other(self) -> Self {
        match self {
            Self::Server => Self::Agent,
            Self::Agent => Self::Server,
        }
    }
}

/// One end's view of a tunnel, and its socket.
#[derive(Debug)]
pub(crate) struct Socket {
    pub(crate) id: TunnelId,
    /// There is a connection: established on the server, dialed on the agent.
    pub(crate) connected: bool,
    pub(crate) sent: usize,
    pub(crate) got: usize,
    /// Told that there is something to read, and not found empty since.
    readable: bool,
    /// Refused, and not told since that there is room.
    blocked: bool,
    pub(crate) finished: bool,
    pub(crate) closed: bool,
    pub(crate) discarded: bool,
    pub(crate) saw_end: bool,
    pub(crate) ended: Option<EndReason>,
}

impl Socket {
    fn new(id: TunnelId) -> Self {
        Self {
            id,
            connected: false,
            sent: 0,
            got: 0,
            readable: false,
            blocked: false,
            finished: false,
            closed: false,
            discarded: false,
            saw_end: false,
            ended: None,
        }
    }

    /// The socket is open, as far as this end is concerned.
    pub(crate) fn is_live(&self) -> bool {
        !self.closed && self.ended.is_none()
    }
}

pub(crate) struct Side {
    pub(crate) link: Link,
    pub(crate) tenant: Arc<Tenant>,
    /// By the number in the dialed address.
    pub(crate) sockets: BTreeMap<u32, Socket>,
    numbers: BTreeMap<TunnelId, u32>,
    outgoing: VecDeque<Bytes>,
    /// What came and was not returned to the stream's window.
    unreturned: usize,
}

pub(crate) struct World {
    pub(crate) now: Instant,
    pub(crate) extensions: Extensions,
    pub(crate) server: Side,
    pub(crate) agent: Side,
    /// What an agent does about a dial by itself.
    pub(crate) answer_dials: bool,
    pub(crate) lost: bool,
}

impl World {
    pub(crate) fn new(extensions: Extensions, config: LinkConfig) -> Self {
        let servers = tenant("a", generous(), 1 << 30);
        Self::of(&servers, StreamId(1), extensions, config)
    }

    pub(crate) fn of(
        servers: &Arc<Tenant>,
        stream: StreamId,
        extensions: Extensions,
        config: LinkConfig,
    ) -> Self {
        let agents = tenant("agent", generous(), 1 << 30);
        Self::between(servers, &agents, stream, extensions, config)
    }

    pub(crate) fn between(
        servers: &Arc<Tenant>,
        agents: &Arc<Tenant>,
        stream: StreamId,
        extensions: Extensions,
        config: LinkConfig,
    ) -> Self {
        // An agent gives up before its server does.
        let of_agent = LinkConfig {
            dial_timeout: config.dial_timeout / 2,
            ..config
        };
        let agent = Link::agent(agents, StreamId(900), extensions, of_agent);
        let server = Link::server(servers, stream, extensions, config).unwrap();
        Self {
            now: start(),
            extensions,
            server: Side::new(server, Arc::clone(servers)),
            agent: Side::new(agent, Arc::clone(agents)),
            answer_dials: false,
            lost: false,
        }
    }

    pub(crate) fn side(&mut self, end: End) -> &mut Side {
        match end {
            End::Server => &mut self.server,
            End::Agent => &mut self.agent,
        }
    }

    pub(crate) fn dial(&mut self, number: u32) {
        let target = DialTarget {
            protocol: "tcp".to_owned(),
            address: number.to_string(),
        };
        let random = DialId(i64::from(number) + 1);
        if let Ok(id) = self.server.link.dial(self.now, random, target) {
            self.server.add(number, id);
        }
        self.take_events(End::Server);
    }

    pub(crate) fn answer(&mut self, number: u32, result: Result<(), String>) {
        let now = self.now;
        let Some(socket) = self.agent.sockets.get_mut(&number) else {
            return;
        };
        if socket.connected || !socket.is_live() {
            return;
        }
        let ok = result.is_ok();
        let answered = self.agent.link.dialed(now, socket.id, result);
        if ok {
            socket.connected = true;
            assert!(answered.is_ok(), "a live dial is gone");
        }
        self.take_events(End::Agent);
    }

    /// Sends up to `len` bytes, as far as there is room; returns how many.
    pub(crate) fn write(&mut self, end: End, number: u32, len: usize) -> usize {
        let side = self.side(end);
        let Some(socket) = side.sockets.get_mut(&number) else {
            return 0;
        };
        if !socket.is_live() || !socket.connected || socket.finished || socket.blocked {
            return 0;
        }
        let room = side.link.write_capacity(socket.id);
        socket.blocked = room == 0;
        let len = len.min(room);
        if len > 0 {
            let data = pattern(number, end, socket.sent, len);
            side.link.write(socket.id, Bytes::from(data)).unwrap();
            socket.sent += len;
        }
        self.take_events(end);
        len
    }

    /// Reads up to `max` bytes, if there was word of any, and checks them; returns how many.
    pub(crate) fn read(&mut self, end: End, number: u32, max: usize) -> usize {
        let (now, extensions) = (self.now, self.extensions);
        let sent = self.side(end.other()).sockets.get(&number);
        let (sent, cut) = sent.map_or((0, false), |peer| (peer.sent, peer.discarded));
        let side = self.side(end);
        let Some(socket) = side.sockets.get_mut(&number) else {
            return 0;
        };
        if !socket.is_live() || !socket.readable {
            return 0;
        }
        let mut len = 0;
        match side.link.read(socket.id, max) {
            Ok(Read::Data(data)) => {
                assert!(!socket.saw_end, "data after the end");
                len = data.len();
                assert!(
                    data == pattern(number, end.other(), socket.got, len),
                    "tunnel {number}: bytes of another place or tunnel at {}",
                    socket.got
                );
                socket.got += len;
                side.link.consumed(now, socket.id, len);
            }
            Ok(Read::End) => {
                if extensions.fin || !cut {
                    assert_eq!(
                        socket.got, sent,
                        "tunnel {number}: a clean end, but not all"
                    );
                }
                socket.saw_end = true;
                socket.readable = false;
            }
            Ok(Read::Pending) => socket.readable = false,
            Err(gone) => panic!("tunnel {number}: {gone}, without an event"),
        }
        self.take_events(end);
        len
    }

    pub(crate) fn finish(&mut self, end: End, number: u32) {
        let now = self.now;
        let side = self.side(end);
        if let Some(socket) = side.sockets.get_mut(&number)
            && socket.is_live()
            && socket.connected
            && !socket.finished
        {
            socket.finished = true;
            side.link.finish(now, socket.id);
        }
        self.take_events(end);
    }

    pub(crate) fn close(&mut self, end: End, number: u32, discard: bool) {
        let now = self.now;
        let side = self.side(end);
        if let Some(socket) = side.sockets.get_mut(&number)
            && socket.is_live()
        {
            socket.closed = true;
            socket.discarded = discard;
            if !discard {
                side.link.finish(now, socket.id);
            }
            side.link.close(now, socket.id);
        }
        self.take_events(end);
    }

    /// Puts the next packet of an end on its way; false when there is none.
    pub(crate) fn transmit(&mut self, end: End) -> bool {
        let now = self.now;
        let side = self.side(end);
        let mut message = BytesMut::new();
        let Some(transmit) = side.link.poll_transmit(now, &mut message) else {
            return false;
        };
        message.extend_from_slice(&transmit.payload.unwrap_or_default());
        side.outgoing.push_back(message.freeze());
        self.take_events(end);
        true
    }

    /// Delivers the next packet toward an end; false when none is on its way.
    pub(crate) fn deliver(&mut self, to: End) -> bool {
        let now = self.now;
        let side = self.side(to);
        side.unreturned = side.unreturned.min(side.link.withheld());
        if side.unreturned >= STREAM_WINDOW {
            return false;
        }
        let Some(message) = self.side(to.other()).outgoing.pop_front() else {
            return false;
        };
        self.side(to).unreturned += message.len();
        let packet = Packet::decode(message).unwrap();
        self.side(to).link.handle_packet(now, packet).unwrap();
        self.take_events(to);
        true
    }

    pub(crate) fn on_the_way(&self, to: End) -> usize {
        match to {
            End::Server => self.agent.outgoing.len(),
            End::Agent => self.server.outgoing.len(),
        }
    }

    /// Ends the stream; what was on its way is lost.
    pub(crate) fn lose(&mut self) {
        self.lost = true;
        for end in [End::Server, End::Agent] {
            let now = self.now;
            let side = self.side(end);
            side.outgoing.clear();
            side.link.end(now);
            self.take_events(end);
        }
    }

    /// Lets time pass, and what is due in it happen.
    pub(crate) fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now < until {
            let due = [&self.server, &self.agent].map(|side| side.link.poll_timeout());
            let due = due.into_iter().flatten().min().unwrap_or(until);
            self.now = due.max(self.now + Duration::from_millis(1)).min(until);
            for end in [End::Server, End::Agent] {
                let now = self.now;
                self.side(end).link.handle_timeout(now);
                self.take_events(end);
            }
        }
    }

    /// Lets everything happen that can without anybody deciding anything or time passing.
    pub(crate) fn settle(&mut self) {
        loop {
            let mut moved = false;
            for end in [End::Server, End::Agent] {
                while self.transmit(end) {
                    moved = true;
                }
                while self.deliver(end) {
                    moved = true;
                }
                for number in self.numbers(end) {
                    while self.read(end, number, usize::MAX) > 0 {
                        moved = true;
                    }
                }
            }
            if !moved {
                return;
            }
        }
    }

    pub(crate) fn numbers(&mut self, end: End) -> Vec<u32> {
        self.side(end).sockets.keys().copied().collect()
    }

    fn take_events(&mut self, end: End) {
        let (answer, now) = (self.answer_dials, self.now);
        let fin = self.extensions.fin;
        while let Some(event) = self.side(end).link.poll_event() {
            match event {
                Event::Dial(tunnel, target) => {
                    let number = target.address.parse().unwrap();
                    let side = self.side(end);
                    side.add(number, tunnel);
                    if answer {
                        side.link.dialed(now, tunnel, Ok(())).unwrap();
                        side.of(tunnel).connected = true;
                    }
                }
                Event::Established(tunnel, _) => self.side(end).of(tunnel).connected = true,
                Event::Readable(tunnel) => self.side(end).of(tunnel).readable = true,
                Event::Writable(tunnel) => self.side(end).of(tunnel).blocked = false,
                Event::Ended(tunnel, reason) => self.on_ended(end, tunnel, reason, fin),
                _ => {}
            }
        }
    }

    fn on_ended(&mut self, end: End, tunnel: TunnelId, reason: EndReason, fin: bool) {
        let number = self.side(end).numbers[&tunnel];
        let peer = self.side(end.other()).sockets.get(&number);
        let (sent, cut) = peer.map_or((0, false), |peer| (peer.sent, peer.discarded));
        let socket = self.side(end).of(tunnel);
        assert_eq!(socket.ended, None, "ended twice");
        let whole = matches!(reason, EndReason::Finished | EndReason::PeerClosed { .. });
        if whole && !socket.closed && (fin || !cut) {
            assert_eq!(socket.got, sent, "tunnel {number}: {reason:?}, but not all");
        }
        socket.ended = Some(reason);
        let id = socket.id;
        let gone = self.side(end).link.read(id, 1).is_err();
        assert!(gone, "a tunnel goes on after its end");
    }

    /// Checks that every tunnel of a stream that ended has ended.
    pub(crate) fn assert_lost(&mut self) {
        for end in [End::Server, End::Agent] {
            let side = self.side(end);
            assert!(side.link.is_idle());
            assert!(side.sockets.values().all(|socket| !socket.is_live()));
        }
    }

    /// Checks that an end holds nothing any more.
    pub(crate) fn assert_idle(&mut self) {
        for end in [End::Server, End::Agent] {
            let side = self.side(end);
            assert!(side.link.is_idle(), "{end:?}: {:#?}", side.link);
            assert_eq!(side.link.poll_timeout(), None);
            assert_eq!(side.tenant.tunnels(), 0);
            assert_eq!(side.tenant.pending_dials(), 0);
            assert_eq!(side.tenant.buffered_bytes(), 0);
            let ended = side.sockets.values().all(|socket| socket.ended.is_some());
            assert!(ended, "a tunnel ended without saying so");
        }
    }
}

impl Side {
    fn new(link: Link, tenant: Arc<Tenant>) -> Self {
        Self {
            link,
            tenant,
            sockets: BTreeMap::new(),
            numbers: BTreeMap::new(),
            outgoing: VecDeque::new(),
            unreturned: 0,
        }
    }

    fn add(&mut self, number: u32, id: TunnelId) {
        assert!(self.numbers.insert(id, number).is_none(), "an id again");
        self.sockets.insert(number, Socket::new(id));
    }

    fn of(&mut self, id: TunnelId) -> &mut Socket {
        let number = self.numbers[&id];
        self.sockets.get_mut(&number).unwrap()
    }
}

/// The bytes of tunnel `number` that `from` sends at `place`.
fn pattern(number: u32, from: End, place: usize, len: usize) -> Vec<u8> {
    let table = TABLE.get_or_init(|| {
        let mut state = 1u32;
        let bytes = std::iter::repeat_with(|| {
            // Knuth's linear congruential generator.
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        });
        bytes.take(PERIOD).collect()
    });
    let seed = number as usize * 7919 + from as usize * 104_729;
    let mut bytes = Vec::with_capacity(len);
    while bytes.len() < len {
        let at = (seed + place + bytes.len()) % PERIOD;
        let until = (at + len - bytes.len()).min(PERIOD);
        bytes.extend_from_slice(&table[at..until]);
    }
    bytes
}

static TABLE: OnceLock<Vec<u8>> = OnceLock::new();
/// A prime, so that no power of two of bytes can be lost unnoticed.
const PERIOD: usize = 65_521;

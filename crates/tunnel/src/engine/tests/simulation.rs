//! Engines joined by a network that delays, blocks and limits, driven in simulated time.
//!
//! Every datagram takes [`DELAY`]. Streams are reliable and in order; closing one end closes the
//! other. Programs connect at once, or fail when the server is gone.

mod changes;
mod intruders;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::ops::Range;

use tunnel_proto::datagram::{INITIATION_LEN, RouteId};
use tunnel_proto::frame::{Decoder, Frame, MAX_LEN};
use tunnel_proto::ip::vnet::VnetHeader;
use tunnel_proto::path::Mode;

use super::super::*;
use crate::handle::PeerSpec;
use crate::keys::PrivateKey;
use crate::status::PeerStatus;

use super::support::{Sink, client_role, key, params, peer, server_role, tcp};

const DELAY: Duration = Duration::from_millis(5);

pub(super) fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// One end, its device, and what it sent by one call.
pub(super) struct End {
    pub(super) engine: Engine,
    device: Vec<Vec<u8>>,
    pub(super) dead: bool,
    pub(super) max_down: Duration,
    down_since: Option<Instant>,
    was_up: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Node {
    Client(usize),
    Server(usize),
}

/// What a link joins.
#[derive(Clone, Copy)]
struct Wire {
    client: usize,
    server: usize,
}

/// Arrival, order, receiver, wire, whether it is a stream, bytes.
type InFlight = (Instant, u64, Node, u64, bool, Vec<u8>);

pub(super) struct Simulation {
    pub(super) now: Instant,
    pub(super) clients: Vec<End>,
    pub(super) servers: Vec<End>,
    /// Whether UDP goes through, and whether it does toward servers and toward clients.
    pub(super) udp: bool,
    pub(super) udp_to_servers: bool,
    pub(super) udp_to_clients: bool,
    /// The largest UDP datagram that anybody sent, as it was or not.
    pub(super) largest_sent: usize,
    /// The first initiation that a client sent.
    first_initiation: Option<Vec<u8>>,
    /// Bytes of the largest UDP datagram that goes through, headers included.
    pub(super) largest: Option<usize>,
    mode: Mode,
    in_flight: BinaryHeap<Reverse<InFlight>>,
    order: u64,
    wires: Vec<(u64, bool, Wire)>,
    last_wire: u64,
}

fn start() -> Instant {
    tokio::time::Instant::now().into_std()
}

fn client_name(at: usize) -> String {
    format!("vpn-shoot-{at}")
}

fn server_name(at: usize) -> String {
    format!("vpn-seed-server-{at}")
}

fn client_address(at: usize) -> String {
    format!("192.168.123.{}", 64 + at)
}

impl Simulation {
    pub(super) fn new(servers: usize, clients: usize, mode: Mode) -> Self {
        let now = start();
        let mut sim = Self {
            now,
            clients: Vec::new(),
            servers: Vec::new(),
            udp: true,
            udp_to_servers: true,
            udp_to_clients: true,
            largest_sent: 0,
            first_initiation: None,
            largest: None,
            mode,
            in_flight: BinaryHeap::new(),
            order: 0,
            wires: Vec::new(),
            last_wire: 100,
        };
        for at in 0..servers {
            let engine = sim.server(at, clients);
            sim.servers.push(End::new(engine));
        }
        for at in 0..clients {
            let engine = sim.client(at, servers);
            sim.clients.push(End::new(engine));
        }
        sim
    }

    /// Returns a server and a client that have been up for a moment.
    pub(super) fn connected() -> Self {
        Self::after(Mode::Auto, ms(1000))
    }

    /// Returns a server and a client after a time.
    pub(super) fn after(mode: Mode, time: Duration) -> Self {
        let mut sim = Self::new(1, 1, mode);
        sim.run_for(time);
        sim
    }

    fn server(&self, at: usize, clients: usize) -> Engine {
        let role = server_role(17 + u32::try_from(at).unwrap());
        let params = params(role, &server_name(at), &self.server_address(at));
        let (keys, random) = (Keys::new(u64::MAX), [7 + self.order; 3]);
        let identity = server_identity(at, clients);
        Engine::new(params, identity, keys, random, self.now).unwrap()
    }

    pub(super) fn server_identity(&self, at: usize) -> Identity {
        server_identity(at, self.clients.len())
    }

    fn client(&self, at: usize, servers: usize) -> Engine {
        let role = client_role(self.mode);
        let params = params(role, &client_name(at), &client_address(at));
        let identity = Identity {
            keys: vec![key(1 + u8::try_from(at).unwrap())],
            peers: (0..servers).map(|at| self.server_spec(at)).collect(),
        };
        Engine::new(params, identity, Keys::new(u64::MAX), [3; 3], self.now).unwrap()
    }

    fn server_spec(&self, at: usize) -> PeerSpec {
        let number = 50 + u8::try_from(at).unwrap();
        PeerSpec {
            route: RouteId::new(17 + u32::try_from(at).unwrap()),
            ..peer(&server_name(at), number, &self.server_address(at))
        }
    }

    #[expect(clippy::unused_self, reason = "reads as what the sim has")]
    pub(super) fn server_address(&self, at: usize) -> String {
        format!("192.168.123.{}", 1 + at)
    }

    /// Sends a flow's next packets both ways and returns whether both arrived.
    pub(super) fn carries(&mut self, client: usize, port: u16) -> bool {
        use tunnel_proto::ip::transport::flags::{ACK, SYN};
        let (source, pod) = (self.server_address(0), "100.96.0.5");
        self.clients[client].device.clear();
        self.servers[0].device.clear();
        self.server_sends_port(port, SYN);
        self.run_for(ms(20));
        let reply = tcp(pod, &source, (443, 2000 + port), SYN | ACK, &[], 0);
        self.client_sends(client, reply);
        self.run_for(ms(20));
        self.clients[client].device.len() == 1 && self.servers[0].device.len() == 1
    }

    /// Returns what a client knows of the first server.
    pub(super) fn client_status(&self, at: usize) -> PeerStatus {
        self.clients[at].engine.status(self.now).peers.remove(0)
    }

    /// Returns whether the first client and the first server are healthy.
    pub(super) fn healthy(&self) -> [bool; 2] {
        let ends = [&self.clients[0], &self.servers[0]];
        ends.map(|end| end.engine.status(self.now).is_healthy())
    }

    pub(super) fn drain_client(&mut self, at: usize) {
        let now = self.now;
        self.call(Node::Client(at), |engine, out| engine.drain(now, out));
    }

    /// Has a client report whether it can forward.
    pub(super) fn settle_client(&mut self, at: usize, settled: bool) {
        let now = self.now;
        self.call(Node::Client(at), |engine, out| {
            engine.set_settled(now, settled, out);
        });
    }

    pub(super) fn close_client(&mut self, at: usize) {
        let now = self.now;
        self.call(Node::Client(at), |engine, out| engine.send_close(now, out));
    }

    pub(super) fn transport(&self, client: usize, server: usize) -> Option<Transport> {
        self.clients[client].engine.status(self.now).peers[server].transport
    }

    pub(super) fn server_transport(&self, server: usize, client: usize) -> Option<Transport> {
        self.servers[server].engine.status(self.now).peers[client].transport
    }

    /// Returns what the first client and the first server send by.
    pub(super) fn transports(&self) -> [Option<Transport>; 2] {
        [self.transport(0, 0), self.server_transport(0, 0)]
    }

    /// Expects that a client was without a link in use for less than this.
    #[track_caller]
    pub(super) fn was_down_less_than(&self, client: usize, limit: Duration) {
        let down = self.clients[client].max_down;
        assert!(down < limit, "{down:?}");
    }

    pub(super) fn dropped_at_server(&self, at: usize, reason: &str) -> u64 {
        let counts = self.servers[at].engine.counts();
        let mut found = counts.dropped().filter(|(name, _)| *name == reason);
        found.next().map_or(0, |(_, count)| count)
    }

    pub(super) fn server_sends(&mut self, at: usize, packet: Vec<u8>) {
        self.device_gives(Node::Server(at), packet);
    }

    /// Has the first server send a packet, and returns all that has come to the first client.
    pub(super) fn carried(&mut self, packet: Vec<u8>) -> Vec<Vec<u8>> {
        self.server_sends(0, packet);
        self.run_for(ms(100));
        self.at_client(0)
    }

    /// Has the first server send a segment of the flow of this number.
    pub(super) fn server_sends_port(&mut self, port: u16, flags: u8) {
        let source = self.server_address(0);
        let packet = tcp(&source, "100.96.0.5", (2000 + port, 443), flags, &[], 0);
        self.server_sends(0, packet);
    }

    /// Has the first server open flows of these numbers.
    pub(super) fn server_opens(&mut self, ports: Range<u16>) {
        for port in ports {
            self.server_sends_port(port, tunnel_proto::ip::transport::flags::SYN);
        }
    }

    pub(super) fn client_sends(&mut self, at: usize, packet: Vec<u8>) {
        self.device_gives(Node::Client(at), packet);
    }

    fn device_gives(&mut self, node: Node, mut packet: Vec<u8>) {
        let now = self.now;
        self.call(node, |engine, out| {
            engine.handle_packet(now, &VnetHeader::default(), &mut packet, out);
        });
    }

    pub(super) fn at_client(&self, at: usize) -> Vec<Vec<u8>> {
        self.clients[at].device.clone()
    }

    pub(super) fn take_at_client(&mut self, at: usize) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.clients[at].device)
    }

    pub(super) fn at_server(&self, at: usize) -> Vec<Vec<u8>> {
        self.servers[at].device.clone()
    }

    pub(super) fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        self.settle();
        loop {
            let arrival = self.in_flight.peek().map(|Reverse((at, ..))| *at);
            let ends = self.clients.iter().chain(&self.servers);
            let timers = ends
                .filter(|end| !end.dead)
                .map(|end| end.engine.poll_timeout());
            let next = timers.chain(arrival).min().unwrap_or(end);
            if next > end {
                break;
            }
            self.now = self.now.max(next);
            self.deliver();
            self.fire();
        }
        self.now = end;
    }

    fn fire(&mut self) {
        let now = self.now;
        let clients = (0..self.clients.len()).map(Node::Client);
        let all: Vec<Node> = clients
            .chain((0..self.servers.len()).map(Node::Server))
            .collect();
        for node in all {
            if !self.end(node).dead && self.end(node).engine.poll_timeout() <= now {
                self.call(node, |engine, out| engine.handle_timeout(now, out));
            }
        }
        for client in &mut self.clients {
            client.watch(now);
        }
    }

    fn deliver(&mut self) {
        while let Some(Reverse((at, _, node, wire, tcp, bytes))) = self.in_flight.peek().cloned() {
            if at > self.now {
                break;
            }
            self.in_flight.pop();
            let known = self.wires.iter().any(|(id, ..)| *id == wire);
            if self.end(node).dead || !known {
                continue;
            }
            self.receive(node, wire, tcp, bytes);
        }
    }

    fn receive(&mut self, node: Node, wire: u64, tcp: bool, mut bytes: Vec<u8>) {
        let now = self.now;
        let remote = remote(node, wire, tcp);
        if !tcp {
            self.call(node, |engine, out| {
                engine.handle_datagram(now, &remote, &mut bytes, out);
            });
            return;
        }
        let mut decoder = Decoder::new(MAX_LEN);
        let mut input = bytes.as_slice();
        while let Some(frame) = decoder.next(&mut input).unwrap() {
            self.call(node, |engine, out| match frame {
                Frame::Control(control) => {
                    engine.handle_control(now, StreamId(wire), &control, out);
                }
                Frame::Datagram(datagram) => engine.handle_frame(now, &remote, datagram, out),
            });
        }
    }

    fn end(&mut self, node: Node) -> &mut End {
        match node {
            Node::Client(at) => &mut self.clients[at],
            Node::Server(at) => &mut self.servers[at],
        }
    }

    /// Calls an engine, and carries off what it says.
    fn call(&mut self, node: Node, work: impl FnOnce(&mut Engine, &mut Sink)) {
        let mut sink = Sink::default();
        let end = self.end(node);
        work(&mut end.engine, &mut sink);
        end.device.append(&mut sink.packets);
        for (to, bytes) in sink.datagrams {
            self.send(node, &to, bytes);
        }
        self.settle();
    }

    fn send(&mut self, from: Node, to: &Remote, bytes: Vec<u8>) {
        let (id, tcp) = match (to, from) {
            (Remote::Stream(StreamId(id)), _) => (*id, true),
            (Remote::Udp { socket, .. }, Node::Client(_)) => (socket.0, false),
            (Remote::Udp { to, .. }, Node::Server(_)) => (u64::from(to.unwrap().port()), false),
            (Remote::Wrapped { .. }, _) => unreachable!("no gateway in this sim"),
        };
        let message = bytes.get(if tcp { 2 } else { 0 }..).unwrap_or_default();
        if let (Node::Client(_), [1, ..], INITIATION_LEN) = (from, message, message.len()) {
            let initiation = || [&[1, 0, 0, 0], &message[4..]].concat();
            self.first_initiation.get_or_insert_with(initiation);
        }
        let Some((.., wire)) = self.wires.iter().find(|(known, ..)| *known == id) else {
            return;
        };
        let fits = self
            .largest
            .is_none_or(|largest| bytes.len() + 28 <= largest);
        let open = self.udp
            && match from {
                Node::Client(_) => self.udp_to_servers,
                Node::Server(_) => self.udp_to_clients,
            };
        if !tcp {
            self.largest_sent = self.largest_sent.max(bytes.len() + 28);
        }
        if !tcp && (!open || !fits) {
            return;
        }
        let target = match from {
            Node::Client(_) => Node::Server(wire.server),
            Node::Server(_) => Node::Client(wire.client),
        };
        self.order += 1;
        let arrival = (self.now + DELAY, self.order, target, id, tcp, bytes);
        self.in_flight.push(Reverse(arrival));
    }

    /// Does what engines asked for.
    fn settle(&mut self) {
        for at in 0..self.clients.len() {
            let mut requests = VecDeque::new();
            while let Some(request) = self.clients[at].engine.poll_request() {
                requests.push_back(request);
            }
            for request in requests {
                self.handle_requests(at, request);
            }
        }
        for at in 0..self.servers.len() {
            while let Some(request) = self.servers[at].engine.poll_request() {
                self.close_at_server(&request);
            }
        }
    }

    /// Ends a stream that a server closes; its other end hears of it.
    fn close_at_server(&mut self, request: &Request) {
        let Request::Close { remote, .. } = request else {
            return;
        };
        let Remote::Stream(stream) = *remote else {
            return;
        };
        let closed = self.wires.iter().position(|(id, ..)| *id == stream.0);
        if let Some((_, _, wire)) = closed.map(|at| self.wires.remove(at)) {
            let now = self.now;
            self.call(Node::Client(wire.client), |engine, out| {
                engine.handle_closed(now, stream, out);
            });
        }
    }

    fn handle_requests(&mut self, client: usize, request: Request) {
        let now = self.now;
        match request {
            Request::Close { remote, .. } => {
                let id = match remote {
                    Remote::Stream(StreamId(id)) => id,
                    Remote::Udp { socket, .. } => socket.0,
                    Remote::Wrapped { .. } => return,
                };
                let closed = self.wires.iter().position(|(known, ..)| *known == id);
                let Some((_, tcp, wire)) = closed.map(|at| self.wires.remove(at)) else {
                    return;
                };
                if tcp {
                    self.call(Node::Server(wire.server), |engine, out| {
                        engine.handle_closed(now, StreamId(id), out);
                    });
                }
            }
            Request::Dial {
                server,
                link,
                transport,
            } => {
                let at = (0..self.servers.len())
                    .find(|at| server_name(*at) == server)
                    .unwrap();
                self.last_wire += 1;
                let (id, tcp) = (self.last_wire, transport == Transport::Tcp);
                self.wires.push((id, tcp, Wire { client, server: at }));
                if tcp {
                    let from = "10.0.0.1:1".parse().unwrap();
                    self.call(Node::Server(at), |engine, out| {
                        engine.handle_accepted(now, StreamId(id), from, out);
                    });
                }
                let remote = remote(Node::Client(client), id, tcp);
                self.call(Node::Client(client), |engine, out| {
                    assert!(engine.handle_connected(now, &server, link, remote, out));
                });
            }
        }
    }
}

impl End {
    fn new(engine: Engine) -> Self {
        Self {
            engine,
            device: Vec::new(),
            dead: false,
            max_down: Duration::ZERO,
            down_since: None,
            was_up: false,
        }
    }

    /// Measures for how long no link was in use, once there was one.
    fn watch(&mut self, now: Instant) {
        let up = self
            .engine
            .status(now)
            .peers
            .iter()
            .all(|peer| peer.transport.is_some());
        self.was_up |= up;
        if up {
            self.down_since = None;
        } else if self.was_up {
            let since = *self.down_since.get_or_insert(now);
            self.max_down = self.max_down.max(now - since + Duration::from_nanos(1));
        }
    }
}

fn remote(node: Node, wire: u64, tcp: bool) -> Remote {
    match (node, tcp) {
        (_, true) => Remote::Stream(StreamId(wire)),
        (Node::Client(_), false) => Remote::Udp {
            socket: SocketId(wire),
            to: None,
            local: None,
        },
        (Node::Server(_), false) => Remote::Udp {
            socket: SocketId(0),
            to: Some(([198, 51, 100, 1], u16::try_from(wire).unwrap()).into()),
            local: None,
        },
    }
}

fn server_identity(at: usize, clients: usize) -> Identity {
    Identity {
        keys: vec![key(50 + u8::try_from(at).unwrap())],
        peers: (0..clients).map(client_spec).collect(),
    }
}

fn client_spec(at: usize) -> PeerSpec {
    let number = 1 + u8::try_from(at).unwrap();
    peer(&client_name(at), number, &client_address(at))
}

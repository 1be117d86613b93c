//! The world of a test, started, and the questions that all tests ask.

use std::net::UdpSocket;
use std::path::Path;
use std::time::Duration;

use testkit::command;
use testkit::http::Upgraded;
use testkit::netns::Namespace;
use testkit::tunnel_world::{Held, LIMIT, POD, Params, Part, Programs, World};
use testkit::upstream::Upstream;
use testkit::wait::{self, Stopwatch};

/// Where the pod's namespace echoes, at every address it has.
pub(crate) const ECHO: &str = "[::]:7000";

/// Returns a world in which nothing runs.
pub(crate) fn lay(params: Params) -> World {
    let server = env!("CARGO_BIN_EXE_vpn-server");
    let programs = Programs {
        gateway: command::sibling(server, "sni-proxy", "sni-proxy").unwrap(),
        server: Path::new(server).to_owned(),
        client: command::sibling(server, "vpn-client", "vpn-client").unwrap(),
    };
    World::lay(programs, params).unwrap()
}

/// Returns a world in which everything runs and is ready, and the echo in its pod.
pub(crate) fn start(params: Params) -> (World, Upstream) {
    let mut world = lay(params);
    let echo = world.echo(ECHO).unwrap();
    let clock = Stopwatch::start();
    world.start().unwrap();
    println!("ready after {:?}", clock.elapsed());
    (world, echo)
}

/// Where the echo is, as servers are asked for it.
pub(crate) fn pod() -> String {
    format!("{POD}:7000")
}

/// Dials the pod by a server, as often as it takes.
pub(crate) fn dial(world: &World, server: usize) -> Upgraded {
    let what = format!("a connection by server {server}");
    wait::until_ok(&what, LIMIT, || world.dial(server, &pod())).unwrap()
}

/// Dials the pod, and says something.
pub(crate) fn converse(world: &World, server: usize) {
    let heard = dial(world, server).exchange(b"hello").unwrap();
    assert_eq!(heard, b"hello");
}

/// Dials the pod and holds the connection, once it has been spoken on.
pub(crate) fn hold(world: &World, server: usize) -> Held {
    let held = Held::hold(dial(world, server)).unwrap();
    alive(&held);
    held
}

/// Waits until a held connection has been spoken on some more.
pub(crate) fn alive(held: &Held) {
    held.wait_exchanges(5, LIMIT).unwrap();
}

/// Expects that a held connection has lived on, prints how long it was silent at most, and that
/// this was less than `bound`.
pub(crate) fn lived(held: &Held, what: &str, bound: Duration) {
    alive(held);
    let gap = held.report().longest_gap;
    println!("{what}: the longest silence was {gap:?}");
    assert!(gap < bound, "{what}: silent for {gap:?}");
}

/// Waits until a client uses `transport` toward a server.
pub(crate) fn wait_transport(world: &World, client: usize, server: usize, transport: &str) {
    let name = format!("vpn-seed-server-{server}");
    let labels = [("peer", name.as_str()), ("transport", transport)];
    let what = format!("client {client} to use {transport} toward {name}");
    wait::until(&what, LIMIT, || {
        world.metric(Part::Client(client), TRANSPORT, &labels) == Some(1.0)
    })
    .unwrap();
}

/// Waits until a server has dropped packets for `reason` beyond the `before` it had.
pub(crate) fn wait_dropped(world: &World, server: usize, reason: &str, before: f64) {
    wait::until(&format!("a packet dropped for {reason}"), LIMIT, || {
        dropped(world, server, reason) > before
    })
    .unwrap();
}

/// Returns how many packets a server has dropped for `reason`.
pub(crate) fn dropped(world: &World, server: usize, reason: &str) -> f64 {
    let labels = [("reason", reason)];
    world
        .metric(Part::Server(server), DROPPED, &labels)
        .unwrap_or_default()
}

/// A UDP socket in the seed that no packet of the shoot may reach.
pub(crate) struct Hearing<'a> {
    namespace: &'a Namespace,
    socket: UdpSocket,
}

impl<'a> Hearing<'a> {
    pub(crate) const PORT: u16 = 7000;

    pub(crate) fn bind(namespace: &'a Namespace) -> Self {
        let bind = || UdpSocket::bind(("::", Self::PORT));
        let socket = namespace.run(bind).unwrap().unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        Self { namespace, socket }
    }

    /// Expects that what is sent now, from its own namespace, is the first that it hears.
    pub(crate) fn expect_nothing(&self) {
        let send = || {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.send_to(b"own", ("127.0.0.1", Self::PORT)).unwrap();
        };
        self.namespace.run(send).unwrap();
        let mut received = [0; 9];
        let len = self.socket.recv(&mut received).unwrap();
        assert_eq!(received[..len].escape_ascii().to_string(), "own");
    }
}

/// Two servers and two clients.
pub(crate) fn doubled() -> Params {
    Params {
        servers: 2,
        clients: 2,
        ..Params::default()
    }
}

/// What is noticed by probes is noticed well within this on a machine that builds meanwhile;
/// what waits for WireGuard's keepalive or TCP's timers takes longer.
pub(crate) const NOTICED: Duration = Duration::from_secs(10);

/// Why a server drops a packet that would open a connection to it.
pub(crate) const OPENING: &str = "filter_opening";

const TRANSPORT: &str = "rhizome_tunnel_peer_transport";
const DROPPED: &str = "rhizome_tunnel_dropped_total";

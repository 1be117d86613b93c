//! One gateway takes established connections over from another, by what its own configuration says.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use testkit::client_hello::ClientHello;
use testkit::process::Signal;
use testkit::tempdir::TempDir;
use testkit::upstream::{Behavior, Upstream};
use testkit::wait::Stopwatch;
use testkit::{ports, sockets, wait};

use crate::support::{Child, Client, LIMIT, Probe, routes_of};

/// Where gateways follow each other.
pub(crate) fn directory() -> TempDir {
    let directory = TempDir::new("handover").unwrap();
    let own = std::fs::Permissions::from_mode(0o700);
    std::fs::set_permissions(directory.path(), own).unwrap();
    directory
}

struct Place {
    directory: TempDir,
    /// Those of TLS, of CONNECT, of probes, of operators.
    ports: Vec<u16>,
}

impl Place {
    fn start(&self, more: &str, routes: &str) -> Child {
        let [tls, connect, probes, admin] = self.ports[..] else {
            unreachable!()
        };
        let socket = self.directory.join("handover.sock");
        let config = format!(
            r#"probes: {{ address: "127.0.0.1:{probes}" }}
admin: {{ address: "127.0.0.1:{admin}" }}
listeners:
- {{ name: tls, address: "127.0.0.1:{tls}", protocol: tls }}
- {{ name: connect, address: "127.0.0.1:{connect}", protocol: connect }}
handover: {{ socket: {} }}
accessLog: {{ format: json }}
routing: {{ file: routes.yaml }}
{more}"#,
            socket.display()
        );
        let manager = self.directory.join("notify");
        let command = format!("export NOTIFY_SOCKET={}", manager.display());
        Child::start_behind(&command, &config, routes)
    }

    fn probe(&self) -> Probe {
        let at = |port: u16| ([127, 0, 0, 1], port).into();
        Probe {
            probes: at(self.ports[2]),
            admin: at(self.ports[3]),
        }
    }
}

#[test]
fn relays_move_to_gateway_without_their_route() {
    let place = Place {
        directory: directory(),
        ports: ports::free(4).unwrap(),
    };
    let echo = Upstream::start(Behavior::Echo).unwrap();
    let routes = routes_of(&[("a", echo.addr()), ("b", echo.addr())]);
    let manager = UnixDatagram::bind(place.directory.join("notify")).unwrap();
    manager.set_read_timeout(Some(LIMIT)).unwrap();
    let main_process = || {
        let mut text = [0; 100];
        let length = manager.recv(&mut text).unwrap();
        String::from_utf8(text[..length].to_vec()).unwrap()
    };
    let mut first = place.start("workers: 2", &routes);
    let of = |child: &Child| format!("READY=1\nMAINPID={}", child.guard.pid());
    assert_eq!(main_process(), of(&first));
    let tls = first.addr("tls");
    let mut all: Vec<Client> = Vec::new();
    for name in ["a.test", "b.test"] {
        all.extend((0..20).map(|_| Client::established(tls, name)));
    }
    let probe = place.probe();
    assert_eq!(probe.connections().len(), 40);

    // A smaller limit, other workers, no route to b.
    let more = "workers: 3\nlimits: { connectionsPerSource: 5, idleTimeout: 1h }";
    let second = place.start(more, &routes_of(&[("a", echo.addr())]));
    let moved = || {
        let labels = [("direction", "in"), ("outcome", "moved")];
        let name = "rhizome_handover_connections_total";
        probe.metrics().value(name, &labels) == Some(40.0)
    };
    wait::until("the relays to move", LIMIT, moved).unwrap();
    wait::until("the newcomer to serve", LIMIT, || probe.readiness() == 200).unwrap();
    assert_eq!(main_process(), of(&second));
    for client in &mut all {
        client.expect_echo(b"still here");
    }
    let shown = probe.connections();
    let of = |cluster: Option<&str>| {
        let is = |one: &&serde_json::Value| one["cluster"].as_str() == cluster;
        shown.iter().filter(is).count()
    };
    assert_eq!((of(Some("a")), of(None)), (20, 20), "{shown:?}");
    assert!(shown.iter().all(|one| one["listener"] == "tls"));
    first.signal(Signal::TERM);
    assert_eq!(first.wait_exit().code(), Some(0));
    assert_eq!(first.stdout(), "");

    // The limit holds for new ones.
    Client::open(tls).end();
    probe.wait_closed("tls", "source_limit", 1);
    let client = all.pop().unwrap();
    let peer = client.addr();
    client.finish();
    let line = second.access_line(peer);
    assert_eq!(
        (&line["server_name"], &line["reason"]),
        (&"b.test".into(), &"closed".into())
    );
    let bytes = line["rx_bytes"].as_u64().unwrap();
    assert!(
        bytes > 10 && line["tx_bytes"].as_u64() == Some(bytes),
        "{line}"
    );
}

#[test]
fn listener_elsewhere_is_bound_and_long_texts_move() {
    let mut place = Place {
        directory: directory(),
        ports: ports::free(5).unwrap(),
    };
    let later = place.ports.pop().unwrap();
    let echo = Upstream::start(Behavior::Echo).unwrap();
    let routes = routes_of(&[("a", echo.addr())]);
    let first = place.start("", &routes);
    let tls = first.addr("tls");
    let aged = Client::established(tls, "a.test");
    let begun = Stopwatch::start();
    wait::pause(Duration::from_secs(3));
    // As long as a preamble may be, each byte six in JSON.
    let mut all: Vec<Client> = Vec::new();
    for _ in 0..8 {
        let hello = ClientHello {
            alpn: vec!["\u{1}".repeat(250); 200],
            ..ClientHello::for_name("a.test")
        };
        let mut client = Client::open(tls);
        client.expect_echo(&hello.encode());
        all.push(client);
    }
    place.ports[0] = later;
    let second = place.start("limits: { maxConnectionAge: 10s }", &routes);
    let probe = place.probe();
    wait::until("the newcomer to serve", LIMIT, || probe.readiness() == 200).unwrap();
    let labels = [("direction", "in"), ("outcome", "moved")];
    let moved = probe.value("rhizome_handover_connections_total", &labels);
    assert_eq!(moved, 9.0);
    all.iter_mut()
        .for_each(|client| client.expect_echo(b"still here"));
    assert_eq!(second.addr("tls").port(), later);
    Client::established(second.addr("tls"), "a.test").expect_echo(b"at the new port");
    // Counted from when it was accepted.
    let line = second.access_line_at("tls", aged.addr());
    assert_eq!(line["reason"], "max_age");
    let age = begun.elapsed();
    assert!((9900..12_900).contains(&age.as_millis()), "{age:?}");
}

#[test]
fn options_that_are_off_leave_sockets_taken_over() {
    let place = Place {
        directory: directory(),
        ports: ports::free(4).unwrap(),
    };
    let echo = Upstream::start(Behavior::Echo).unwrap();
    let routes = routes_of(&[("a", echo.addr())]);
    let mut first = place.start("tcp: { keepalive: 1s, userTimeout: 5s }", &routes);
    let tls = first.addr("tls");
    let before = Client::established(tls, "a.test");
    wait::until("keepalive", LIMIT, || {
        sockets::keeps_alive(before.addr()).unwrap()
    })
    .unwrap();
    let second = place.start("tcp: { keepalive: 0s }", &routes);
    let probe = place.probe();
    wait::until("the newcomer to serve", LIMIT, || probe.readiness() == 200).unwrap();
    first.signal(Signal::TERM);
    assert_eq!(first.wait_exit().code(), Some(0));
    assert_eq!(second.addr("tls"), tls);
    let mut after = Client::established(tls, "a.test");
    after.expect_echo(b"accepted by the newcomer");
    let shown = || sockets::toward(after.addr()).unwrap();
    // One timer is shown, and that of retransmission comes first.
    wait::until("all to be acknowledged", LIMIT, || {
        !shown().contains("timer:(on")
    })
    .unwrap();
    assert!(!shown().contains("keepalive"), "{}", shown());
}

#[test]
fn trace_tells_what_is_handed_over() {
    let mut place = Place {
        directory: directory(),
        ports: ports::free(5).unwrap(),
    };
    let later = place.ports.pop().unwrap();
    let routes = routes_of(&[("a", ([127, 0, 0, 1], 9).into())]);
    let _first = place.start("", &routes);
    let older = place.probe();
    let state = |probe: &Probe| probe.admin_json("/trace?sni=a.test")["state"].clone();
    assert_eq!(state(&older), "serving");
    place.ports[3] = later;
    let _second = place.start("", &routes);
    let newer = place.probe();
    wait::until("the newcomer to serve", LIMIT, || newer.readiness() == 200).unwrap();
    assert_eq!(state(&newer), "serving");
    wait::until("the older one to tell", LIMIT, || {
        state(&older) == "handed over"
    })
    .unwrap();
}

//! One gateway takes flows over from another: with their sockets, by what its own routes say.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::{UnixListener, UnixStream};

use serde_json::{Value, json};
use testkit::process::Signal;
use testkit::tempdir::TempDir;
use testkit::{ports, wait};

use super::peers::{
    DROPPED, Peer, Server, base64, data, index, initiation, numbered, response, wait_flows,
    with_route,
};
use crate::handover::directory;
use crate::support::{Child, LIMIT, Probe};

struct Place {
    directory: TempDir,
    /// Those of WireGuard, of probes, of operators.
    ports: Vec<u16>,
}

impl Place {
    fn new() -> Self {
        Self {
            directory: directory(),
            ports: ports::free(3).unwrap(),
        }
    }

    fn start(&self, more: &str, routes: &str) -> Child {
        let socket = self.directory.join("handover.sock");
        let config = format!(
            r#"probes: {{ address: "127.0.0.1:{}" }}
admin: {{ address: "127.0.0.1:{}" }}
handover: {{ socket: {}, timeout: 10s }}
accessLog: {{ format: json }}
listeners:
- {{ name: wg, address: "127.0.0.1:{}", protocol: wireguard }}
{more}"#,
            self.ports[1],
            self.ports[2],
            socket.display(),
            self.ports[0],
        );
        Child::start(&config, routes)
    }

    fn client(&self) -> Peer {
        Peer::at("127.0.0.1", ([127, 0, 0, 1], self.ports[0]).into())
    }

    fn probe(&self) -> Probe {
        let at = |port: u16| ([127, 0, 0, 1], port).into();
        Probe {
            probes: at(self.ports[1]),
            admin: at(self.ports[2]),
        }
    }

    fn wait_moved(&self, count: f64) {
        let probe = self.probe();
        let labels = [("direction", "in"), ("outcome", "done")];
        wait::until("the flows to move", LIMIT, || {
            let metrics = probe.metrics();
            metrics.value("rhizome_handovers_total", &labels) == Some(1.0)
        })
        .unwrap();
        wait::until("the newcomer to serve", LIMIT, || probe.readiness() == 200).unwrap();
        let labels = [("direction", "in"), ("outcome", "moved")];
        let moved = probe.value("rhizome_handover_connections_total", &labels);
        assert!((moved - count).abs() < 0.1, "{moved}");
    }
}

/// Routes to one server by number, to another by key.
fn routes(server: &Server, foreign: &Server, key: &[u8; 32]) -> String {
    numbered(&[server]).replace(
        "routes:\n",
        &format!(
            "- {{ name: foreign, endpoints: [{{ address: \"{}\" }}] }}\nroutes:\n",
            foreign.addr()
        ),
    ) + &format!(
        "- {{ wireguard: {{ publicKeys: [\"{}\"] }}, cluster: foreign }}\n",
        base64(key)
    )
}

#[test]
fn flows_move_with_their_ports() {
    let (place, key) = (Place::new(), [7; 32]);
    let (server, foreign) = (Server::start(), Server::start());
    let routes = routes(&server, &foreign, &key);
    let mut first = place.start("workers: 2", &routes);
    let clients: Vec<Peer> = (0..20).map(|_| place.client()).collect();
    let mut before = Vec::new();
    for client in &clients {
        before.push(client.exchange(&server, 1, 1));
    }
    let stranger = place.client();
    stranger.send(&initiation(7, Some(&key)));
    let seen = foreign.receive();
    let own_index = 0x7700_0077;
    seen.answer(&response(own_index, 7));
    assert_eq!(stranger.receive(), response(own_index, 7));
    // In the middle of a handshake.
    let fresh = place.client();
    fresh.send(&with_route(initiation(9, None), 1));
    let asked = server.receive();
    wait_flows(&place.probe(), 22);

    let mut second = place.start("workers: 3\ndrain: { delay: 0s, timeout: 100ms }", &routes);
    place.wait_moved(21.0);
    let probe = place.probe();
    wait_flows(&probe, 22);
    assert_eq!(probe.connections().len(), 21);
    probe.wait_value("rhizome_listener_connections_active", &[], 21.0);
    probe.wait_value(
        "rhizome_listener_connections_total",
        &[("listener", "wg")],
        0.0,
    );
    // A server's datagram comes through the same port, before its client says a word.
    for (client, seen) in clients.iter().zip(&before) {
        seen.answer(&data(7, 2));
        assert_eq!(client.receive(), data(7, 2));
        let again = client.exchange(&server, 1, 3);
        assert_eq!(again.gateway, seen.gateway);
    }
    stranger.send(&data(own_index, 4));
    assert_eq!(foreign.receive().gateway, seen.gateway);
    asked.answer(&response(index(1), 9));
    assert_eq!(fresh.receive(), response(index(1), 9));
    probe.wait_value("rhizome_listener_connections_active", &[], 22.0);
    probe.wait_value(
        "rhizome_listener_connections_total",
        &[("listener", "wg")],
        1.0,
    );
    assert!(probe.value(DROPPED, &[]).abs() < 0.1);

    first.signal(Signal::TERM);
    assert_eq!(first.wait_exit().code(), Some(0));
    assert_eq!(first.stdout(), "");
    second.signal(Signal::TERM);
    let line = second.access_line(clients[0].addr());
    // Two of ours and two of the server's; the client's third answered the other's second.
    assert_eq!(
        (&line["rx_bytes"], &line["tx_bytes"]),
        (&64.into(), &96.into()),
        "{line}"
    );
    assert_eq!(second.wait_exit().code(), Some(0));
    assert_eq!(second.stdout().lines().count(), 22);
}

#[test]
fn listener_elsewhere_gets_sockets_of_its_own() {
    let mut place = Place::new();
    let server = Server::start();
    let routes = numbered(&[&server]);
    let first = place.start("workers: 1", &routes);
    let old = place.client();
    let port = old.exchange(&server, 1, 1).gateway;
    place.ports[0] = ports::free(1).unwrap()[0];
    let second = place.start("workers: 1", &routes);
    place.wait_moved(1.0);
    drop(first);
    assert_eq!(old.exchange(&server, 1, 2).gateway, port);
    let client = place.client();
    let own = client.exchange(&server, 1, 3).gateway;
    assert_ne!(own, port);
    // Both go on.
    let _third = place.start("workers: 1", &routes);
    place.wait_moved(2.0);
    drop(second);
    assert_eq!(old.exchange(&server, 1, 4).gateway, port);
    assert_eq!(client.exchange(&server, 1, 5).gateway, own);
}

#[test]
fn no_datagram_is_lost_in_a_handover() {
    let place = Place::new();
    let server = Server::start();
    let routes = numbered(&[&server]);
    let mut gateways = vec![place.start("workers: 1", &routes)];
    let client = place.client();
    let port = client.exchange(&server, 1, 0).gateway;
    let (echo, stop) = (server.socket().try_clone().unwrap(), data(index(1), 255));
    let served = std::thread::spawn(move || {
        let mut buf = [0; 2048];
        let mut count = 0_u32;
        loop {
            let (len, gateway) = echo.recv_from(&mut buf).unwrap();
            assert_eq!(gateway, port);
            if buf[24..len] == stop[..] {
                return count;
            }
            count += 1;
            echo.send_to(&buf[..len], gateway).unwrap();
        }
    });
    let mut sent = 0_u32;
    let mut answered = 0_u32;
    for workers in [2, 1] {
        let place = &place;
        let routes = &routes;
        let next = std::thread::scope(|scope| {
            let next = scope.spawn(move || {
                let next = place.start(&format!("workers: {workers}"), routes);
                place.wait_moved(1.0);
                next
            });
            while !next.is_finished() {
                // A few in flight, as a tunnel has them.
                for _ in 0..4 {
                    client.send(&data(index(1), 1));
                    sent += 1;
                }
                for _ in 0..4 {
                    client.receive();
                    answered += 1;
                }
            }
            next.join().unwrap()
        });
        let mut last = gateways.pop().unwrap();
        last.signal(Signal::TERM);
        assert_eq!(last.wait_exit().code(), Some(0));
        gateways.push(next);
    }
    client.send(&data(index(1), 255));
    assert_eq!((served.join().unwrap(), answered), (sent, sent));
    assert!(sent > 8, "{sent}");
}

#[test]
fn flows_end_whose_route_the_newcomer_lacks() {
    let place = Place::new();
    let (one, two) = (Server::start(), Server::start());
    let _first = place.start("", &numbered(&[&one, &two]));
    let (kept, ended) = (place.client(), place.client());
    let port = kept.exchange(&one, 1, 1).gateway;
    ended.exchange(&two, 2, 1);
    let second = place.start("", &numbered(&[&one]));
    place.wait_moved(2.0);
    let line = second.access_line(ended.addr());
    assert_eq!(line["reason"], "unknown_destination", "{line}");
    assert_eq!(
        (&line["rx_bytes"], &line["tx_bytes"]),
        (&32.into(), &32.into())
    );
    assert_eq!(kept.exchange(&one, 1, 2).gateway, port);
    wait_flows(&place.probe(), 1);
}

#[test]
fn drain_takes_new_flows_beside_another_process() {
    let server = Server::start();
    let routes = numbered(&[&server]);
    let (older, mut newer) = (Place::new(), Place::new());
    newer.ports[0] = older.ports[0];
    let more = "workers: 1\ndrain: { delay: 0s, timeout: 3600s }";
    let _first = older.start(more, &routes);
    let client = older.client();
    let port = client.exchange(&server, 1, 1).gateway;
    let _second = newer.start("workers: 1", &routes);
    let probe = older.probe();
    let answer = Probe::ask(probe.admin, "POST", "/drain");
    assert!(answer.status < 300, "{}", answer.status);
    wait::until("the older one to accept no more", LIMIT, || {
        let trace = Probe::ask(probe.admin, "GET", "/trace?wireguard=1");
        trace.text().contains("accepts no more")
    })
    .unwrap();
    // The kernel leads half of them to it.
    let clients: Vec<Peer> = (0..30).map(|_| older.client()).collect();
    let seen = { clients.iter() }.map(|client| client.exchange(&server, 1, 2).gateway);
    let seen: Vec<_> = seen.collect();
    assert!(seen.contains(&port), "{seen:?}");
    assert!(seen.iter().any(|gateway| *gateway != port), "{seen:?}");
    assert!(probe.value(DROPPED, &[]).abs() < 0.1);
}

/// A process that says what a test has it say.
struct Other(UnixStream);

impl Other {
    fn connect(place: &Place) -> Self {
        let stream = UnixStream::connect(place.directory.join("handover.sock")).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        Self(stream)
    }

    fn say(&mut self, message: &Value) {
        let json = message.to_string();
        let mut frame = u32::try_from(json.len()).unwrap().to_be_bytes().to_vec();
        frame.extend([0; 8]);
        frame.extend(json.as_bytes());
        self.0.write_all(&frame).unwrap();
    }

    /// Waits for a message, whose descriptors are closed.
    fn hear(&mut self) -> Value {
        let mut head = [0; 12];
        self.0.read_exact(&mut head).unwrap();
        let mut json = vec![0; u32::from_be_bytes(*head.first_chunk().unwrap()) as usize];
        self.0.read_exact(&mut json).unwrap();
        serde_json::from_slice(&json).unwrap()
    }
}

#[test]
fn flows_stay_when_newcomer_dies_before_they_are_its_own() {
    let place = Place::new();
    let server = Server::start();
    let gateway = place.start("workers: 1", &numbered(&[&server]));
    let client = place.client();
    let seen = client.exchange(&server, 1, 1);
    for time in 1..=2 {
        let mut other = Other::connect(&place);
        other.say(&json!({"type": "hello", "lowest": 1, "highest": 1}));
        assert_eq!(other.hear()["type"], "agreed");
        assert_eq!(other.hear()["flows"], json!(["wg"]));
        other.say(&json!({"type": "serving"}));
        let table = other.hear();
        let flow = &table["flows"][0];
        assert_eq!(
            (&flow["proven"], &flow["routeId"]),
            (&true.into(), &1.into())
        );
        assert_eq!(flow["connection"]["peer"], client.addr().to_string());
        // Nothing is read meanwhile; what waits is served afterwards.
        client.send(&data(index(1), 2));
        drop(other);
        assert_eq!(server.receive().gateway, seen.gateway);
        let labels = [("direction", "out"), ("outcome", "kept")];
        let kept = "rhizome_handover_connections_total";
        gateway.wait_value(kept, &labels, f64::from(time));
        assert_eq!(client.exchange(&server, 1, 3).gateway, seen.gateway);
    }
}

#[test]
fn listener_is_served_again_when_newcomer_dies_with_its_flows() {
    let place = Place::new();
    let server = Server::start();
    let port = ports::free(1).unwrap()[0];
    let more = format!(
        "- {{ name: more, address: \"127.0.0.1:{port}\", protocol: wireguard }}\nworkers: 1"
    );
    let gateway = place.start(&more, &numbered(&[&server]));
    let clients = [
        place.client(),
        Peer::at("127.0.0.1", ([127, 0, 0, 1], port).into()),
    ];
    for client in &clients {
        client.exchange(&server, 1, 1);
    }
    let mut other = Other::connect(&place);
    other.say(&json!({"type": "hello", "lowest": 1, "highest": 1}));
    assert_eq!(other.hear()["type"], "agreed");
    assert_eq!(other.hear()["flows"].as_array().unwrap().len(), 2);
    other.say(&json!({"type": "serving"}));
    let first = other.hear();
    other.say(&json!({"type": "taken"}));
    assert_eq!(other.hear()["type"], "commit");
    let second = other.hear();
    assert_ne!(first["listener"], second["listener"]);
    drop(other);
    let labels = [("direction", "out"), ("outcome", "given_up")];
    gateway.wait_value("rhizome_handovers_total", &labels, 1.0);
    for (client, listener) in clients.iter().zip(["wg", "more"]) {
        let echo = || {
            client.send(&data(index(1), 2));
            gateway.value("rhizome_wireguard_flows", &[("listener", listener)]) > 0.0
        };
        wait::until("the listener to be served", LIMIT, echo).unwrap();
        assert_eq!(server.receive().datagram, data(index(1), 2));
    }
}

#[test]
fn newcomer_serves_anew_when_the_other_dies_midway() {
    let place = Place::new();
    let server = Server::start();
    let path = place.directory.join("handover.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let other = std::thread::spawn(move || {
        let mut other = Other(listener.accept().unwrap().0);
        assert_eq!(other.hear()["type"], "hello");
        other.say(&json!({"type": "agreed", "version": 1}));
        let all = ["wg", "wg", "unknown"];
        other.say(&json!({"type": "sockets", "sockets": [], "last": true, "flows": all}));
        assert_eq!(other.hear()["type"], "serving");
    });
    let gateway = place.start("workers: 3", &numbered(&[&server]));
    other.join().unwrap();
    wait::until("the newcomer to serve", LIMIT, || {
        gateway.readiness() == 200
    })
    .unwrap();
    let at: SocketAddr = ([127, 0, 0, 1], place.ports[0]).into();
    for mark in 0..10 {
        Peer::at("127.0.0.1", at).exchange(&server, 1, mark);
    }
    wait_flows(&gateway, 10);
    let labels = [("direction", "in"), ("outcome", "given_up")];
    gateway.wait_value("rhizome_handovers_total", &labels, 1.0);
}

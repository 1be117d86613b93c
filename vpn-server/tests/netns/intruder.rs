//! An attacker that has a client's key: another WireGuard, which sends what it is given.

use std::path::Path;

use testkit::inject::{Injector, Payload, packet};
use testkit::netns::End;
use testkit::peers::wireguard::{Program, Wireguard};
use testkit::tunnel_world::{GATEWAY, LIMIT, Params, Part, World};
use testkit::wait;

use crate::world::{ECHO, Hearing, OPENING, dropped, lay};

/// Starts another WireGuard where client 0 would be, with its key, toward server 0.
fn foreign(world: &World, program: Program) -> Wireguard {
    let namespace = world.namespace(Part::Client(0));
    let wireguard = program.start(namespace, world.dir.path()).unwrap();
    let word = |path: &Path| path.to_str().unwrap().to_owned();
    let private = word(&world.keys.clients[0].path);
    let preshared = word(world.keys.preshared[0].as_ref().unwrap());
    let endpoint = format!("{GATEWAY}:51820");
    wireguard.set(&["private-key", &private]).unwrap();
    let words = [
        "peer",
        &world.keys.known_servers[0][0],
        "preshared-key",
        &preshared,
        "endpoint",
        &endpoint,
        "persistent-keepalive",
        "1",
        "allowed-ips",
        "0.0.0.0/0,::/0",
    ];
    wireguard.set(&words).unwrap();
    for cidr in ["192.168.123.64/24", "fd8f:6d53:b97a:1::b:0/96"] {
        namespace.add_address(wireguard.device(), cidr).unwrap();
    }
    wireguard
}

/// Starts everything but the client.
fn without_client() -> World {
    let mut world = lay(Params::default());
    for part in [Part::Gateway, Part::Server(0)] {
        world.start_part(part).unwrap();
    }
    world.wait_ready(Part::Gateway).unwrap();
    world
}

/// Lets the client's namespace be a router between tunnel and shoot, as our client would.
fn route(world: &World, device: &str) {
    let namespace = world.namespace(Part::Client(0));
    namespace.forward_ipv4().unwrap();
    let rules = format!(
        "add table ip nat; add chain ip nat out {{ type nat hook postrouting priority 100; }}; \
         add rule ip nat out iifname {device} masquerade"
    );
    let mut nft = namespace.command("nft");
    testkit::command::run(nft.arg(rules)).unwrap();
}

#[test]
fn every_other_wireguard_can_be_the_client() {
    for program in Program::ALL {
        let world = without_client();
        let _echo = world.echo(ECHO).unwrap();
        let wireguard = foreign(&world, program);
        route(&world, wireguard.device());
        let what = format!("a connection by {}", program.name());
        let mut stream =
            wait::until_ok(&what, LIMIT, || world.dial(0, &crate::world::pod())).unwrap();
        assert_eq!(stream.exchange(b"hello").unwrap(), b"hello");
    }
}

#[test]
fn stolen_client_key_opens_nothing_in_seed() {
    let world = without_client();
    let _echo = world.echo(ECHO).unwrap();
    let wireguard = foreign(&world, Program::WireguardGo2022);
    let device = wireguard.device();
    route(&world, device);
    let what = "the intruder's tunnel";
    wait::until_ok(what, LIMIT, || world.dial(0, &crate::world::pod())).unwrap();

    let namespace = world.namespace(Part::Client(0));
    for prefix in ["10.0.0.0/16", "::ffff:0:0/96"] {
        namespace
            .ip(&["route", "add", prefix, "dev", device])
            .unwrap();
    }
    let end = End {
        namespace,
        device: "stray",
    };
    let injector = Injector::new(end).unwrap();
    let seed = [world.namespace(Part::Server(0)), &world.network.api_server];
    let hearing = seed.map(Hearing::bind);
    let counted = [OPENING, "destination", "source"];
    let before = counted.map(|reason| dropped(&world, 0, reason));
    for (source, destination) in [
        ("192.168.123.64", "192.168.123.1"),
        ("192.168.123.64", "10.0.0.11"),
        ("192.168.123.64", "10.0.0.20"),
        ("100.96.0.11", "192.168.123.1"),
        ("10.0.0.20", "192.168.123.1"),
        ("127.0.0.1", "192.168.123.1"),
        ("fd8f:6d53:b97a:1::b:0", "fd8f:6d53:b97a:1::1"),
        ("fd8f:6d53:b97a:1::b:0", "::ffff:10.0.0.11"),
        ("fd00:96::11", "fd8f:6d53:b97a:1::1"),
    ] {
        let (source, destination) = (source.parse().unwrap(), destination.parse().unwrap());
        let (from, to) = (53, Hearing::PORT);
        let data = b"stray";
        for payload in [
            Payload::Udp { from, to, data },
            Payload::Syn { from, to: 9443 },
            Payload::Echo,
        ] {
            let made = packet(source, destination, payload).unwrap();
            injector.send(&made).unwrap();
        }
    }
    // The first segments to the server from where the client may send; all that was sent to the
    // seed's addresses, and from one of them.
    for ((reason, before), sent) in counted.iter().zip(before).zip([3.0, 9.0, 3.0]) {
        crate::world::wait_dropped(&world, 0, reason, before + sent - 1.0);
    }
    let mut stream = world.dial(0, &crate::world::pod()).unwrap();
    stream.exchange(b"after").unwrap();
    hearing.iter().for_each(Hearing::expect_nothing);
}

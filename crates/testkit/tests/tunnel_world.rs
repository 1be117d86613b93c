//! A world of tunnels without any tunnel: what leads where, and what does not.
#![cfg(feature = "netns-tests")]
#![expect(
    clippy::unwrap_used,
    reason = "a helper of a test fails where its step fails"
)]

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use testkit::impair::{Direction, Impairment};
use testkit::netns::Namespace;
use testkit::tempdir::TempDir;
use testkit::tunnel_world::{GATEWAY, NODE, POD, Params, Programs, SeedRange, World};
use testkit::upstream::{Behavior, Upstream};

/// A program that can make keys, and nothing else.
const KEYGEN: &str = "#!/bin/sh\necho private > \"$2\"\necho public-of-$(basename \"$2\")\n";

fn world(dir: &TempDir, params: Params) -> World {
    let program = dir.write("program", KEYGEN).unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    let programs = Programs {
        gateway: program.clone(),
        server: program.clone(),
        client: program,
    };
    World::lay(programs, params).unwrap()
}

fn serve(namespace: &Namespace, addr: &str) -> Upstream {
    let listener = namespace.run(|| TcpListener::bind(addr)).unwrap().unwrap();
    Upstream::serve(listener, Behavior::Echo).unwrap()
}

fn connect(namespace: &Namespace, addr: &str) -> std::io::Result<TcpStream> {
    let addr: SocketAddr = addr.parse().map_err(std::io::Error::other)?;
    let limit = Duration::from_secs(20);
    let connect = || TcpStream::connect_timeout(&addr, limit);
    namespace.run(connect).map_err(std::io::Error::other)?
}

fn converse(namespace: &Namespace, addr: &str) {
    let mut stream = connect(namespace, addr).unwrap();
    stream.write_all(b"hello").unwrap();
    stream.read_exact(&mut [0; 5]).unwrap();
}

#[test]
fn clients_reach_gateway_and_shoot_alone() {
    let dir = TempDir::new("world").unwrap();
    let params = Params {
        servers: 2,
        clients: 2,
        ..Params::default()
    };
    let world = world(&dir, params);
    let network = &world.network;
    let _gateway = serve(&network.gateway, "0.0.0.0:8132");
    let _server = serve(&network.servers[1], "0.0.0.0:1194");
    let _pod = world.echo("0.0.0.0:7000").unwrap();
    for client in &network.clients {
        converse(client, &format!("{GATEWAY}:8132"));
        converse(client, &format!("{POD}:7000"));
        converse(client, &format!("{NODE}:7000"));
    }
    converse(&network.gateway, "10.0.0.12:1194");
    converse(&network.api_server, "10.0.0.12:1194");
    for outside in [&network.gateway, &network.api_server, &network.servers[0]] {
        let error = connect(outside, &format!("{POD}:7000")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NetworkUnreachable);
    }
}

#[test]
fn each_client_has_a_line_of_its_own() {
    let dir = TempDir::new("world").unwrap();
    let params = Params {
        clients: 2,
        seed_range: SeedRange::OfTheShoot,
        ..Params::default()
    };
    let world = world(&dir, params);
    let network = &world.network;
    let _gateway = serve(&network.gateway, "0.0.0.0:8132");
    world.link(0).set_both(Impairment::default());
    converse(&network.clients[1], &format!("{GATEWAY}:8132"));
    assert_eq!(world.link(0).counts(Direction::Forth).delivered, 0);
    assert!(world.link(1).counts(Direction::Forth).delivered > 0);
    // Where the ranges are the same, the server's own address is the pod's.
    let _server = serve(&network.servers[0], &format!("{POD}:1194"));
    converse(&network.gateway, &format!("{POD}:1194"));
}

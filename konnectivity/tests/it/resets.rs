//! A reset of one side of a tunnel reaches the other as what comes nearest to a reset there: by TLS
//! a reset, by gRPC a CLOSE_RSP with an error. Toward upstream's agents the protocol has no word for
//! it, and a Unix socket has none either.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use socket2::SockRef;
use testkit::konnectivity::{AgentMetadata, FakeFrontend, HttpFrontend, Packet, Tunnel, connect};
use testkit::upstream::{Behavior, Upstream};
use testkit::wait;

use crate::support::{Held, Kind, LIMIT, Mode, Rig, Server, ServerFlags, noise, tunnel};

const BULK: usize = 4 << 20;

/// What a destination that resets is for an API server by gRPC.
const RESET_BY_PEER: &str = "connection reset by peer";

/// A server for API servers that come by TLS, with an agent of ours.
struct OverTls {
    rig: Rig,
    frontend: FakeFrontend,
}

impl OverTls {
    fn start() -> Self {
        let rig = Rig::of(ServerFlags::new(Mode::Http).tcp(), Mode::Http, Kind::Rust);
        let frontend = FakeFrontend::Http(by_tls(&rig.server));
        Self { rig, frontend }
    }

    fn tunnel(&self, addr: SocketAddr) -> Tunnel {
        tunnel(&self.frontend, addr)
    }
}

fn by_tls(server: &Server) -> HttpFrontend {
    let (pki, addr) = (server.pki(), server.frontends());
    let identity = pki.authority.client("kube-apiserver", &[], &[]).unwrap();
    HttpFrontend::tls(addr, "localhost", pki.authority.pem(), Some(&identity)).unwrap()
}

fn reset(stream: TcpStream) {
    let socket = SockRef::from(&stream);
    socket.set_linger(Some(Duration::ZERO)).unwrap();
}

/// Reads to the end, whatever it is.
fn read_out(mut stream: impl Read) -> (Vec<u8>, Result<(), ErrorKind>) {
    let mut all = Vec::new();
    let end = stream.read_to_end(&mut all);
    (all, end.map(drop).map_err(|error| error.kind()))
}

const RESET: Result<(), ErrorKind> = Err(ErrorKind::ConnectionReset);

#[test]
fn destination_reset_reaches_tls_frontend() {
    let over_tls = OverTls::start();
    for bytes in [1, BULK] {
        let after = bytes as u64;
        let resets = Upstream::start(Behavior::Resets { after }).unwrap();
        let mut tunnel = over_tls.tunnel(resets.addr());
        tunnel.writer.write_all(&vec![7; bytes]).unwrap();
        assert_eq!(read_out(&mut tunnel.reader), (vec![], RESET), "{bytes}");
    }
    over_tls.rig.wait_idle();
}

/// Upstream's agent has an error for a connection that it could not close.
#[test]
fn error_of_upstreams_agent_resets_tls_frontend() {
    let server = ServerFlags::new(Mode::Http).tcp().start();
    let mut wire = connect(&server.target(), &AgentMetadata::new("theirs")).unwrap();
    wire.head(LIMIT).unwrap();
    server.wait_agents(1);
    let frontend = by_tls(&server);
    let asking = std::thread::spawn(move || frontend.connect("10.0.0.1:80").unwrap().unwrap());
    let dial = |packet: &Packet| matches!(packet, Packet::DialReq { .. });
    let Packet::DialReq { random, .. } = wire.find("DIAL_REQ", LIMIT, dial).unwrap() else {
        panic!("no dial");
    };
    wire.send(&Packet::DialRsp {
        error: String::new(),
        connect_id: 1,
        random,
    })
    .unwrap();
    let mut tunnel = asking.join().unwrap();
    wire.send_together(&[
        Packet::data(1, *b"cut"),
        Packet::CloseRsp {
            connect_id: 1,
            error: "close tcp: connection reset by peer".to_owned(),
        },
    ])
    .unwrap();
    assert_eq!(read_out(&mut tunnel.reader), (b"cut".to_vec(), RESET));
}

#[test]
fn answer_arrives_before_reset() {
    let over_tls = OverTls::start();
    let held = Held::new();
    let mut tunnel = over_tls.tunnel(held.addr());
    let mut destination = held.accept();
    let answer = noise(1, 1 << 20);
    destination.write_all(&answer).unwrap();
    // The API server has read next to nothing.
    let name = "rhizome_konnectivity_relayed_bytes_total";
    let sent = [("direction", "from_destination")];
    over_tls
        .rig
        .server
        .wait_value(name, &sent, answer.len() as f64);
    reset(destination);
    let (found, end) = read_out(&mut tunnel.reader);
    assert!(found == answer, "{} bytes", found.len());
    assert_eq!(end, RESET);
    over_tls.rig.wait_idle();
}

#[test]
fn tls_frontend_reset_reaches_destination() {
    let over_tls = OverTls::start();
    for bytes in [1, BULK] {
        let sink = Upstream::start(Behavior::Sink).unwrap();
        let mut tunnel = over_tls.tunnel(sink.addr());
        tunnel.writer.write_all(&vec![7; bytes]).unwrap();
        let all = || sink.received() == bytes as u64;
        wait::until("the bytes to arrive", LIMIT, all).unwrap();
        tunnel.reset();
        sink.wait_resets(1, LIMIT).unwrap();
    }
    over_tls.rig.wait_idle();
}

#[test]
fn destination_reset_reaches_grpc_frontend() {
    let rig = Rig::start(Mode::Grpc, Kind::Rust);
    for bytes in [1, BULK] {
        let after = bytes as u64;
        let resets = Upstream::start(Behavior::Resets { after }).unwrap();
        let mut tunnel = rig.tunnel(resets.addr());
        for piece in vec![7; bytes].chunks(64 << 10) {
            tunnel.writer.write_all(piece).unwrap();
        }
        assert_eq!(tunnel.reader.rest().unwrap(), b"");
        assert_eq!(tunnel.reader.end(), Some(RESET_BY_PEER), "{bytes} bytes");
    }
    rig.wait_idle();
}

#[test]
fn lost_grpc_frontend_resets_destination() {
    let rig = Rig::start(Mode::Grpc, Kind::Rust);
    let sink = Upstream::start(Behavior::Sink).unwrap();
    let mut tunnel = rig.tunnel(sink.addr());
    tunnel.writer.write_all(b"x").unwrap();
    wait::until("the byte", LIMIT, || sink.received() == 1).unwrap();
    tunnel.reset();
    sink.wait_resets(1, LIMIT).unwrap();
    rig.wait_idle();
}

/// A Unix socket whose client closes with unread data reports ECONNRESET.
#[test]
fn unread_uds_close_resets_destination() {
    let rig = Rig::start(Mode::Http, Kind::Rust);
    let held = Held::new();
    let mut tunnel = rig.tunnel(held.addr());
    let mut destination = held.accept();
    tunnel.writer.write_all(b"x").unwrap();
    destination.read_exact(&mut [0]).unwrap();
    destination.write_all(&noise(1, 100_000)).unwrap();
    tunnel.reader.read_exact(&mut [0; 10]).unwrap();
    drop(tunnel);
    assert_eq!(read_out(&mut destination).1, RESET);
    drop(destination);
    rig.wait_idle();
}

/// The write meets the reset before the read does, which then finds an end.
#[test]
fn failed_upload_does_not_end_tunnel_cleanly() {
    let over_tls = OverTls::start();
    let held = Held::new();
    for round in 0..20 {
        let mut tunnel = over_tls.tunnel(held.addr());
        let mut destination = held.accept();
        destination.write_all(b"cut").unwrap();
        tunnel.reader.read_exact(&mut [0; 3]).unwrap();
        let uploading = std::thread::spawn(move || {
            let piece = noise(round, 16 << 10);
            while tunnel.writer.write_all(&piece).is_ok() {}
            tunnel
        });
        destination.read_exact(&mut [0; 100_000]).unwrap();
        reset(destination);
        let mut tunnel = uploading.join().unwrap();
        let (rest, end) = read_out(&mut tunnel.reader);
        assert!(rest.is_empty() && end.is_err(), "round {round}: {end:?}");
    }
    over_tls.rig.wait_idle();
}

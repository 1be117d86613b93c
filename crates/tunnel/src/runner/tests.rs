//! Two data threads of one process, joined by loopback, with devices that are pairs of sockets.

use std::io::IoSlice;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tunnel_proto::ip::vnet;
use tunnel_proto::path::{Mode, Transport};

use super::{Counters, Runner, now};
use crate::device::tests::ALL;
use crate::device::{Device, Port, READ_BUFFER};
use crate::engine::tests::support::{client_role, key, params, peer, server_role};
use crate::handle::Command;
use crate::{Dials, Identity, Params, PeerSpec, Sockets, Tunnel};

const LIMIT: Duration = Duration::from_secs(30);

fn ingredients(own: u8, peer: PeerSpec, udp: Option<UdpSocket>) -> (Identity, Sockets, Device) {
    let (device, other) = Device::pair(ALL).unwrap();
    let sockets = Sockets {
        device,
        udp,
        wrapped: None,
        trusted_gateways: Vec::new(),
    };
    let identity = Identity {
        keys: vec![key(own)],
        peers: vec![peer],
    };
    (identity, sockets, other)
}

fn start(params: Params, own: u8, peer: PeerSpec, udp: Option<UdpSocket>) -> (Tunnel, Dials, Port) {
    let (identity, sockets, other) = ingredients(own, peer, udp);
    let registry = telemetry::Registry::new();
    let (tunnel, dials) = Tunnel::start(params, identity, sockets, &registry).unwrap();
    (tunnel, dials, Port::new(other).unwrap())
}

/// A server and a client that use one transport, and their devices' networks.
struct Ends {
    server: Tunnel,
    seed: Port,
    client: Tunnel,
    shoot: Port,
    listener: SocketAddr,
}

async fn ends(mode: Mode) -> Ends {
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let udp_address = udp.local_addr().unwrap();
    let server = params(server_role(17), "server", "192.168.123.1");
    let (server, _, seed) = start(server, 1, peer("client", 2, "192.168.123.64"), Some(udp));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let tcp_address = listener.local_addr().unwrap();
    let accepting = server.clone();
    std::thread::spawn(move || {
        while let Ok((stream, from)) = listener.accept() {
            accepting.accept(stream, from);
        }
    });
    let client = params(client_role(mode), "client", "192.168.123.64");
    let (client, mut dials, shoot) = start(client, 2, peer("server", 1, "192.168.123.1"), None);
    tokio::spawn(async move {
        while let Some(dial) = dials.next().await {
            match dial.transport {
                Transport::Tcp => dial.tcp(TcpStream::connect(tcp_address).unwrap(), Vec::new()),
                Transport::Udp => {
                    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
                    socket.connect(udp_address).unwrap();
                    dial.udp(socket);
                }
            }
        }
    });
    for tunnel in [&server, &client] {
        let mut status = tunnel.watch();
        let healthy = status.wait_for(|status| status.is_healthy());
        timeout(LIMIT, healthy).await.unwrap().unwrap();
    }
    Ends {
        server,
        seed,
        client,
        shoot,
        listener: tcp_address,
    }
}

/// A datagram of UDP between a server's address and a pod, without checksums of its own.
fn datagram(source: [u8; 4], target: [u8; 4], number: u32) -> Vec<u8> {
    let mut packet = vec![0; 32];
    packet[0] = 0x45;
    packet[3] = 32;
    packet[8] = 64;
    packet[9] = 17;
    packet[12..16].copy_from_slice(&source);
    packet[16..20].copy_from_slice(&target);
    let sum = tunnel_proto::ip::checksum::checksum(&packet[..20]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet[20..24].copy_from_slice(&[7, 208, 7, 208]);
    packet[25] = 12;
    packet[28..32].copy_from_slice(&number.to_be_bytes());
    packet
}

fn write(port: &Port, packet: &[u8]) {
    let parts = [IoSlice::new(&[0; vnet::LEN]), IoSlice::new(packet)];
    port.write(&parts).unwrap();
}

async fn read(port: &mut Port) -> Vec<u8> {
    let mut buffer = vec![0; READ_BUFFER];
    let reading = async {
        loop {
            let ready = std::future::poll_fn(|cx| port.poll_readable(cx));
            ready.await.unwrap();
            if let Some(packet) = port.read(&mut buffer).unwrap() {
                return packet.bytes.to_vec();
            }
        }
    };
    timeout(LIMIT, reading).await.expect("a packet in time")
}

const SERVER: [u8; 4] = [192, 168, 123, 1];
const POD: [u8; 4] = [100, 96, 0, 5];

/// Sends numbers to and fro, one at a time: a source that is not woken shows as a time-out.
async fn exchange(ends: &mut Ends, numbers: std::ops::Range<u32>) {
    for number in numbers {
        let question = datagram(SERVER, POD, number);
        write(&ends.seed, &question);
        assert_eq!(read(&mut ends.shoot).await, question);
        let answer = datagram(POD, SERVER, number);
        write(&ends.shoot, &answer);
        assert_eq!(read(&mut ends.seed).await, answer);
    }
}

#[tokio::test]
async fn packets_go_both_ways_by_either_transport() {
    for mode in [Mode::Udp, Mode::Tcp] {
        let mut ends = ends(mode).await;
        exchange(&mut ends, 0..200).await;
        ends.client.stop().await;
        ends.server.stop().await;
    }
}

#[tokio::test]
async fn short_lived_streams_disturb_no_other() {
    let mut ends = ends(Mode::Tcp).await;
    for number in 0..50 {
        let mut strangers = Vec::new();
        for bytes in [&b"\xc0\x01x"[..], b"\x00\x04junk", b""] {
            let mut stranger = TcpStream::connect(ends.listener).unwrap();
            std::io::Write::write_all(&mut stranger, bytes).unwrap();
            strangers.push(stranger);
        }
        exchange(&mut ends, number..number + 1).await;
        drop(strangers);
        exchange(&mut ends, number..number + 1).await;
    }
}

/// Returns a server that is polled by the test.
fn runner(identity: Identity, sockets: Sockets) -> (Runner, mpsc::Sender<Command>) {
    let (commands, received) = mpsc::channel(100);
    let ends = crate::handle::Ends {
        commands: received,
        status: watch::channel(Arc::default()).0,
        dials: mpsc::channel(1).0,
        answers: commands.downgrade(),
        stopped: Arc::new(watch::channel(()).0),
    };
    let counters = Counters::new(&telemetry::Registry::new());
    let params = params(server_role(17), "server", "192.168.123.1");
    let runner = Runner::new(params, identity, sockets, counters, ends).unwrap();
    (runner, commands)
}

/// Connections of strangers come as commands.
#[tokio::test]
async fn many_commands_leave_time_for_packets() {
    let (identity, sockets, _other) = ingredients(1, peer("client", 2, "192.168.123.64"), None);
    let (mut runner, commands) = runner(identity, sockets);
    for _ in 0..100 {
        commands.try_send(Command::Drain).unwrap();
    }
    let cx = &mut Context::from_waker(Waker::noop());
    for left in [84, 68, 52] {
        assert_eq!(runner.handle_commands(now(), cx), Some(true));
        assert_eq!(runner.ends.commands.len(), left);
    }
}

/// The kernel joins datagrams of one sender.
#[tokio::test]
async fn refused_datagrams_of_gateways_are_each_counted() {
    const COUNT: u64 = 10;
    for (trusted, refused) in [("192.0.2.0/24", [COUNT, 0]), ("127.0.0.0/8", [0, COUNT])] {
        let peer = peer("client", 2, "192.168.123.64");
        let (identity, mut sockets, _other) = ingredients(1, peer, None);
        let wrapped = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = wrapped.local_addr().unwrap();
        sockets.wrapped = Some(wrapped);
        sockets.trusted_gateways = vec![trusted.parse().unwrap()];
        let (mut runner, _commands) = runner(identity, sockets);
        let options = udp::Options {
            mtu_discovery: udp::MtuDiscovery::Probe,
            offloads: udp::Offloads::default(),
        };
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        let sender = udp::Datagrams::new(sender, options).unwrap();
        let mut outbox = udp::Outbox::default();
        for _ in 0..COUNT {
            outbox.push(&sender, address, None, (&[], &[0; 100]));
        }
        outbox.flush(&sender);
        let counted = std::future::poll_fn(|cx| {
            runner.receive_datagrams(now(), cx);
            let counted = [runner.ports.untrusted, runner.ports.not_wrapped];
            if counted == refused {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        });
        timeout(LIMIT, counted).await.expect(trusted);
    }
}

#[tokio::test]
async fn client_is_unhealthy_after_server_stops() {
    let mut ends = ends(Mode::Auto).await;
    exchange(&mut ends, 0..10).await;
    // The server goes: streams end at once, datagrams are no longer answered.
    ends.server.stop().await;
    let mut status = ends.client.watch();
    let down = status.wait_for(|status| !status.is_healthy());
    timeout(LIMIT, down).await.unwrap().unwrap();
}

#[tokio::test]
async fn refused_identity_is_returned_to_caller() {
    let ends = ends(Mode::Udp).await;
    let identity = |keys| Identity {
        keys,
        peers: Vec::new(),
    };
    let error = ends.server.replace(identity(vec![])).await.unwrap_err();
    assert!(error.to_string().contains("no private key"), "{error}");
    ends.server.stop().await;
    let replaced = ends.server.replace(identity(vec![key(1)])).await;
    let error = replaced.unwrap_err();
    assert_eq!(error, crate::TunnelError::Stopped);
}

#[tokio::test]
async fn thread_ends_with_last_handle() {
    let client = params(client_role(Mode::Auto), "client", "192.168.123.64");
    let (client, mut dials, _shoot) = start(client, 2, peer("server", 1, "192.168.123.1"), None);
    while let Ok(dial) = timeout(Duration::from_millis(100), dials.next()).await {
        dial.expect("asked for while it runs")
            .failed("no peer listens");
    }
    drop(client);
    let ended = async { while dials.next().await.is_some() {} };
    timeout(LIMIT, ended)
        .await
        .expect("no dial is asked for any more");
}

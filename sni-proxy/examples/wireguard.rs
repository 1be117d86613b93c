//! Measures a WireGuard listener: datagrams a second, and handshakes while junk floods in.
//!
//! ```text
//!     generator ═▶ gateway, in this process, 10,000 servers ═wrapped═▶ one sink for all of them
//!     junk (148 bytes) ─▶ │ ◀─ handshakes: with a route id, and without ─▶ answered in time?
//! ```
//!
//! `cargo run --release -p sni-proxy --example wireguard`. Everything shares the CPUs of one
//! machine, so figures are what the gateway does beside its load, not what it could do alone.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement")]

use std::io::IoSliceMut;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use blake2::digest::consts::U16;
use blake2::digest::{FixedOutput, KeyInit, Update};
use blake2::{Blake2s256, Blake2sMac, Digest};
use quinn_udp::{RecvMeta, Transmit, UdpSockRef, UdpSocketState};
use sni_proxy::{Config, Environment, Gateway};
use telemetry::LogControl;
use testkit::tempdir::TempDir;

const SERVERS: u32 = 10_000;
const FOR: Duration = Duration::from_secs(5);
const HANDSHAKES: u32 = 50;
/// Time between two handshakes.
const PAUSE: Duration = Duration::from_millis(20);
/// Ends data that the sink is to answer with data.
const ANSWER: u8 = 1;
/// Networks that one flood comes from.
const SOURCES: usize = 250;
const IN_TIME: Duration = Duration::from_secs(1);

/// What the sink saw, and whether to go on.
#[derive(Default)]
struct Seen {
    datagrams: AtomicU64,
    bytes: AtomicU64,
    stop: AtomicBool,
}

fn main() {
    let sink = UdpSocket::bind("127.0.0.1:0").unwrap();
    let dir = TempDir::new("wireguard-load").unwrap();
    dir.write("routes.yaml", routes(sink.local_addr().unwrap()))
        .unwrap();
    let (gateway, drain) = start(&dir);
    let seen = Arc::new(Seen::default());
    let answering = std::thread::spawn({
        let seen = Arc::clone(&seen);
        move || answer(&sink, &seen)
    });
    for (what, size, run) in [
        ("1452 bytes, runs of 32", 1452, 32),
        ("1452 bytes, one by one", 1452, 1),
        ("148 bytes, one by one", 148, 1),
    ] {
        throughput(what, gateway, size, run, &seen);
    }
    for (what, named, flood) in [
        ("named, no flood", true, 0),
        ("foreign, no flood", false, 0),
        ("named, one flood", true, 1),
        ("foreign, one flood", false, 1),
        ("named, two floods", true, 2),
        ("foreign, two floods", false, 2),
    ] {
        handshakes(what, gateway, named, flood);
    }
    seen.stop.store(true, Ordering::Relaxed);
    drain.cut();
    answering.join().unwrap();
}

fn key(number: u32) -> [u8; 32] {
    Blake2s256::digest(number.to_le_bytes()).into()
}

/// As configurations have a key.
fn base64(key: &[u8; 32]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bit = |at: usize| usize::from(key.get(at / 8).map_or(0, |byte| byte >> (7 - at % 8) & 1));
    let digit = |at: usize| (0..6).fold(0, |sum, own| sum << 1 | bit(at * 6 + own));
    (0..43)
        .map(|at| char::from(DIGITS[digit(at)]))
        .collect::<String>()
        + "="
}

fn routes(sink: SocketAddr) -> String {
    let mut text =
        format!("clusters: [{{ name: c, endpoints: [{{ address: \"{sink}\" }}] }}]\nroutes:\n");
    for number in 1..=SERVERS {
        let key = base64(&key(number));
        text += &format!(
            "- {{ wireguard: {{ publicKeys: [\"{key}\"], routeId: {number} }}, cluster: c }}\n"
        );
    }
    text
}

fn start(dir: &TempDir) -> (SocketAddr, serve::Drain) {
    let text = r#"
workers: 2
probes: { address: "127.0.0.1:0" }
admin: { address: "" }
listeners: [{ name: wg, address: "127.0.0.1:0", protocol: wireguard }]
routing: { file: routes.yaml }
"#;
    let config = Config::from_text(text, &dir.join("sni-proxy.yaml")).unwrap();
    let (started, starting) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async move {
            let (environment, log) = (Environment::default(), LogControl::detached());
            let gateway = Gateway::start(config, None, &environment, log).unwrap();
            let address = gateway.listener_address("wg").unwrap();
            started.send((address, gateway.drain().clone())).unwrap();
            gateway.run(None).await.unwrap();
        });
    });
    starting.recv().unwrap()
}

/// Counts what comes; handshakes are answered with a response, and the first data with data.
fn answer(sink: &UdpSocket, seen: &Seen) {
    let state = UdpSocketState::new(UdpSockRef::from(sink)).unwrap();
    sink.set_nonblocking(false).unwrap();
    sink.set_read_timeout(Some(Duration::from_millis(100)))
        .unwrap();
    // One message at a time: a blocking call for several waits until it has them all.
    let mut buffers = vec![vec![0_u8; 65_536]; 1];
    let mut meta = vec![RecvMeta::default(); 1];
    while !seen.stop.load(Ordering::Relaxed) {
        let mut slices: Vec<_> = buffers.iter_mut().map(|own| IoSliceMut::new(own)).collect();
        let Ok(filled) = state.recv(UdpSockRef::from(sink), &mut slices, &mut meta) else {
            continue;
        };
        for (buffer, meta) in buffers.iter().zip(&meta).take(filled) {
            let datagrams = buffer[..meta.len].chunks(meta.stride.max(1));
            seen.datagrams
                .fetch_add(datagrams.len() as u64, Ordering::Relaxed);
            seen.bytes.fetch_add(meta.len as u64, Ordering::Relaxed);
            for own in datagrams {
                let (kind, len) = match (own.get(24), own.last()) {
                    (Some(1), _) => (2, 92),
                    (Some(4), Some(&ANSWER)) => (4, 32),
                    _ => continue,
                };
                let mut response = own[..24].to_vec();
                response.resize(24 + len, 0);
                response[24] = kind;
                let _ = sink.send_to(&response, meta.addr);
            }
        }
    }
}

fn datagram(size: usize, number: u32) -> Vec<u8> {
    let mut datagram = vec![0; size];
    datagram[0] = 4;
    datagram[4..8].copy_from_slice(&(number << 12).to_le_bytes());
    datagram
}

/// Sends as fast as the kernel takes it from one client that its server knows.
fn throughput(what: &str, gateway: SocketAddr, size: usize, run: usize, seen: &Seen) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    prove(&socket, gateway);
    let state = UdpSocketState::new(UdpSockRef::from(&socket)).unwrap();
    let contents = datagram(size, 1).repeat(run);
    let transmit = Transmit {
        destination: gateway,
        ecn: None,
        contents: &contents,
        segment_size: Some(size),
        src_ip: None,
    };
    let count = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
    let (before, bytes, start) = (count(&seen.datagrams), count(&seen.bytes), clock());
    let mut sent = 0_u64;
    while start.elapsed() < FOR {
        if state.try_send(UdpSockRef::from(&socket), &transmit).is_ok() {
            sent += run as u64;
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let datagrams = (count(&seen.datagrams) - before) as f64 / seconds;
    let gigabits = (count(&seen.bytes) - bytes) as f64 * 8e-9 / seconds;
    let offered = sent as f64 / seconds;
    println!("{what}: {datagrams:.0} datagrams/s, {gigabits:.2} Gb/s, of {offered:.0} offered");
}

/// Has the gateway see data both ways, after which a flow needs no tokens.
fn prove(socket: &UdpSocket, gateway: SocketAddr) {
    let mut asking = datagram(32, 1);
    asking[31] = ANSWER;
    socket.send_to(&asking, gateway).unwrap();
    socket.recv(&mut [0; 64]).unwrap();
}

/// An initiation for the server of a number.
fn handshake(sender: u32, number: u32, named: bool) -> Vec<u8> {
    let mut datagram = vec![0; 148];
    datagram[0] = 1;
    datagram[4..8].copy_from_slice(&sender.to_le_bytes());
    let label = Blake2s256::new()
        .chain_update(b"mac1----")
        .chain_update(key(number));
    let mut mac = <Blake2sMac<U16> as KeyInit>::new(&label.finalize());
    mac.update(&datagram[..116]);
    let mac1: [u8; 16] = mac.finalize_fixed().into();
    datagram[116..132].copy_from_slice(&mac1);
    if named {
        datagram[1..4].copy_from_slice(&number.to_be_bytes()[1..]);
    }
    datagram
}

/// Shakes hands with one server after the other while others send junk of the same size.
fn handshakes(what: &str, gateway: SocketAddr, named: bool, floods: u8) {
    let (stop, junk) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut taken: Vec<Duration> = Vec::new();
    let mut rate = 0.0;
    std::thread::scope(|scope| {
        for source in 0..floods {
            let (stop, junk) = (&stop, &junk);
            scope.spawn(move || {
                let bind = |own: usize| {
                    UdpSocket::bind(SocketAddr::from(([127, 1 + source, own as u8, 1], 0))).unwrap()
                };
                let sockets: Vec<UdpSocket> = (0..SOURCES).map(bind).collect();
                let datagram = handshake(9, SERVERS + 1, false);
                for socket in sockets.iter().cycle() {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let sent = socket.send_to(&datagram, gateway);
                    junk.fetch_add(u64::from(sent.is_ok()), Ordering::Relaxed);
                }
            });
        }
        testkit::wait::pause(IN_TIME); // the floods are at work then
        let (start, before) = (clock(), junk.load(Ordering::Relaxed));
        for round in 0..HANDSHAKES {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.set_read_timeout(Some(IN_TIME)).unwrap();
            let began = clock();
            let number = 1 + round * 7919 % SERVERS;
            socket
                .send_to(&handshake(round, number, named), gateway)
                .unwrap();
            if socket.recv(&mut [0; 256]).is_ok() {
                taken.push(began.elapsed());
            }
            testkit::wait::pause(PAUSE);
        }
        let sent = junk.load(Ordering::Relaxed) - before;
        rate = sent as f64 / start.elapsed().as_secs_f64();
        stop.store(true, Ordering::Relaxed);
    });
    taken.sort_unstable();
    let percent = 100.0 * taken.len() as f64 / f64::from(HANDSHAKES);
    let median = taken.get(taken.len() / 2).copied().unwrap_or_default();
    let last = taken
        .get(taken.len() * 99 / 100)
        .copied()
        .unwrap_or_default();
    println!(
        "{what}: {percent:.1} % of handshakes within {IN_TIME:?} (p50 {median:.1?}, p99 {last:.1?}), junk {rate:.0}/s"
    );
}

#[expect(clippy::disallowed_methods, reason = "a measurement has one clock")]
fn clock() -> Instant {
    Instant::now()
}

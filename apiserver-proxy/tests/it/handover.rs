//! One process takes established connections over from another: no client notices, and all counts are right.

use std::hash::{BuildHasher, RandomState};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::http::{self, Target};
use testkit::process::Signal;
use testkit::tempdir::TempDir;
use testkit::upstream::{Behavior, Upstream};
use testkit::{ports, wait};

use crate::gateway::{Scripted, read_head};
use crate::proxy::{
    LIMIT, Program, by_connect, by_proxy_header, config, connect, finish, metrics, program, with,
};

mod ending;

/// A place at which processes follow each other.
struct Place {
    directory: TempDir,
    port: u16,
    gateway: Upstream,
}

impl Place {
    fn new() -> Self {
        let directory = TempDir::new("handover").unwrap();
        let own = std::fs::Permissions::from_mode(0o700);
        std::fs::set_permissions(directory.path(), own).unwrap();
        Self {
            directory,
            port: ports::free(1).unwrap()[0],
            gateway: Upstream::start(Behavior::Echo).unwrap(),
        }
    }

    fn config(&self, more: Value) -> Value {
        let base = json!({
            "listen": [format!("127.0.0.1:{}", self.port)],
            "handover": { "socket": self.directory.join("handover.sock") },
            "accessLog": { "format": "json" },
            "drain": { "delay": "5s", "timeout": "5s" },
        });
        config(by_proxy_header(self.gateway.addr()), with(base, more))
    }

    /// Starts a process and waits until it serves.
    fn start(&self, more: Value) -> Program {
        let mut program = Program::start(&self.config(more));
        let probes = program.probes;
        let ready = || readiness_at(probes).is_some_and(|(status, _)| status == 200);
        program.child.wait_ready(LIMIT, ready).unwrap();
        program
    }

    fn connect(&self) -> TcpStream {
        connect(([127, 0, 0, 1], self.port).into())
    }

    /// Opens a connection and reads the header that comes back, as all does.
    fn open(&self) -> TcpStream {
        let mut stream = self.connect();
        stream.write_all(b"?").unwrap();
        // A PROXY header 2 of IPv4 without TLVs, which may have any byte.
        assert!(read(&mut stream, 28 + 1).ends_with(b"?"));
        stream
    }
}

fn readiness(program: &Program) -> Option<(u16, String)> {
    readiness_at(program.probes)
}

fn readiness_at(probes: SocketAddr) -> Option<(u16, String)> {
    let answer = http::get(&Target::plain(probes), "/readyz").ok()?;
    Some((answer.status, answer.text()))
}

fn read(stream: &mut TcpStream, bytes: usize) -> Vec<u8> {
    let mut buffer = vec![0; bytes];
    stream.read_exact(&mut buffer).unwrap();
    buffer
}

fn says_back(stream: &mut TcpStream, text: &[u8]) {
    stream.write_all(text).unwrap();
    assert_eq!(read(stream, text.len()), text);
}

/// Returns bytes of which no two in a row of 1,000 are at the same place of two rows.
fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes)
        .map(|at| (at % 251) as u8 ^ (at / 1000) as u8)
        .collect()
}

/// Sends what its echo has no room for, until nothing more is taken, or 64 MiB; returns how much that was.
fn fill(stream: &TcpStream) -> usize {
    let all = pattern(64 << 20);
    let mut stream = stream.try_clone().unwrap();
    stream.set_nonblocking(true).unwrap();
    let (mut sent, mut quiet) = (0, 0);
    while quiet < 20 && sent < all.len() {
        match stream.write(&all[sent..]) {
            Ok(bytes) => (sent, quiet) = (sent + bytes, 0),
            Err(_) => {
                wait::pause(Duration::from_millis(10));
                quiet += 1;
            }
        }
    }
    stream.set_nonblocking(false).unwrap();
    sent
}

/// Returns what a program counts of connections handed over.
fn counted(program: &Program, direction: &str, outcome: &str) -> f64 {
    let labels = [("direction", direction), ("outcome", outcome)];
    let metrics = metrics(program.probes);
    let counted = metrics.value("rhizome_handover_connections_total", &labels);
    counted.unwrap_or(0.0)
}

fn active(program: &Program) -> f64 {
    let metrics = metrics(program.probes);
    metrics
        .value("rhizome_listener_connections_active", &[])
        .unwrap_or(0.0)
}

/// Returns the ends of connections that a program has logged.
fn ends(program: &Program) -> Vec<Value> {
    let log = program.child.log();
    let lines = log
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines
        .filter(|line| line.get("rx_bytes").is_some())
        .collect()
}

/// Ends the traffic also when a check fails, which would wait for it for ever.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn established_connections_move_to_newcomer() {
    let place = Place::new();
    let mut first = place.start(json!({}));
    let mut idle: Vec<TcpStream> = (0..150).map(|_| place.open()).collect();
    // One that takes nothing: what was read for it moves along.
    let mut stalled = place.open();
    let sent = fill(&stalled);
    let (over, rounds) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        for bytes in [3, 3000, 300_000] {
            let (mut stream, over, rounds) = (place.open(), &over, &rounds);
            scope.spawn(move || {
                let mut sender = stream.try_clone().unwrap();
                let mut number = 0_u8;
                while !over.load(Ordering::Relaxed) {
                    number = number.wrapping_add(1);
                    let text: Vec<u8> = (0..bytes).map(|at| number ^ at as u8).collect();
                    thread::scope(|both| {
                        both.spawn(|| sender.write_all(&text).unwrap());
                        assert_eq!(read(&mut stream, bytes), text);
                    });
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let ending = Ending(&over);
        let more_rounds = || {
            let before = rounds.load(Ordering::Relaxed);
            let more = || rounds.load(Ordering::Relaxed) > before + 50;
            wait::until("bulk to go on", LIMIT, more).unwrap();
        };
        more_rounds();
        let mut second = place.start(json!({}));
        let (status, why) = readiness(&first).unwrap();
        assert_eq!((status, why.contains("handed over")), (503, true), "{why}");
        assert_eq!(
            http::get(&Target::plain(first.probes), "/healthz")
                .unwrap()
                .status,
            200
        );
        more_rounds();
        assert_eq!(
            (counted(&first, "out", "moved"), active(&first)),
            (154.0, 0.0)
        );
        assert_eq!(
            (counted(&second, "in", "moved"), active(&second)),
            (154.0, 154.0)
        );
        idle.iter_mut()
            .for_each(|stream| says_back(stream, b"still here"));
        let later = place.open();
        assert_eq!(active(&second), 155.0);

        first.child.signal(Signal::TERM).unwrap();
        let status = first.child.wait_exit(LIMIT).unwrap();
        assert_eq!(status.code(), Some(0));
        assert_eq!(ends(&first), [] as [Value; 0], "{}", first.child.log());
        let third = place.start(json!({ "workers": 2 }));
        more_rounds();
        drop(ending);
        idle.iter_mut()
            .for_each(|stream| says_back(stream, b"here too"));
        assert!(
            read(&mut stalled, sent) == pattern(sent),
            "not what was sent"
        );
        assert!(finish(later).is_empty());
        assert_eq!(active(&second), 0.0);
        let last = idle.pop().unwrap();
        assert!(finish(last).is_empty());
        // Others end as well.
        let logged = || ends(&third).iter().any(|end| end["rx_bytes"] == 1 + 10 + 8);
        wait::until("its end in the log", LIMIT, logged).unwrap();
        drop(idle);
        assert!(second.child.exit_status().unwrap().is_none());
    });
}

/// Returns those that are still served.
fn served(streams: Vec<TcpStream>) -> Vec<TcpStream> {
    let is_served = |stream: &TcpStream| {
        let mut stream = stream;
        let mut back = [0; 5];
        stream.write_all(b"alive").is_ok()
            && stream.read_exact(&mut back).is_ok()
            && back == *b"alive"
    };
    streams.into_iter().filter(is_served).collect()
}

#[test]
fn killed_process_takes_only_its_own_along() {
    const CONNECTIONS: usize = 400;
    // Moments of a handover, which takes 50 to 100 ms here; others each time.
    let seed = RandomState::new();
    for round in 0..12_u64 {
        let place = Place::new();
        let mut first = place.start(json!({}));
        let streams: Vec<_> = (0..CONNECTIONS).map(|_| place.open()).collect();
        let mut second = Program::start(&place.config(json!({})));
        wait::pause(Duration::from_micros(seed.hash_one(round) % 90_000));
        let first_dies = round % 2 == 0;
        let (killed, survivor) = match first_dies {
            true => (&mut first, &second),
            false => (&mut second, &first),
        };
        killed.child.kill().unwrap();
        let left = served(streams);
        let gave_all = |(_, why): (u16, String)| why.contains("handed over");
        if !first_dies && readiness(survivor).is_none_or(gave_all) {
            // It ends within 2 s, since no process listens, or has ended.
            assert!(left.is_empty());
            continue;
        }
        let settled = || readiness(survivor).is_some_and(|(_, why)| !why.contains("taking over"));
        wait::until("the survivor to go on", LIMIT, settled).unwrap();
        let own = match first_dies {
            true => counted(survivor, "in", "moved"),
            false => CONNECTIONS as f64 - counted(survivor, "out", "moved"),
        };
        assert_eq!(
            (left.len() as f64, active(survivor)),
            (own, own),
            "round {round}: {}",
            survivor.child.log_tail(30)
        );
        if own > 0.0 || first_dies {
            finish(place.open());
        }
    }
}

#[test]
fn newcomer_told_to_stop_leaves_the_rest() {
    const CONNECTIONS: usize = 400;
    // A handover takes 50 to 100 ms here.
    for millis in [0, 10, 20, 30, 40, 50, 60, 80] {
        let place = Place::new();
        let mut first = place.start(json!({}));
        let streams: Vec<_> = (0..CONNECTIONS).map(|_| place.open()).collect();
        let quick = json!({ "drain": { "delay": "0s", "timeout": "5s" } });
        let mut second = Program::start(&place.config(quick));
        wait::pause(Duration::from_millis(millis));
        second.child.signal(Signal::TERM).unwrap();
        assert_eq!(served(streams).len(), CONNECTIONS, "{millis} ms");
        // Before it listens to signals one ends it.
        let code = second.child.wait_exit(LIMIT).unwrap().code();
        assert!([None, Some(0)].contains(&code), "{millis} ms: {code:?}");
        let Some((status, why)) = readiness(&first) else {
            // Left alone, it has ended.
            assert_eq!(first.child.wait_exit(LIMIT).unwrap().code(), Some(0));
            continue;
        };
        if status == 200 {
            (0..20).for_each(|_| drop(finish(place.open())));
        } else {
            // It had nothing left, and had been told so.
            assert!(why.contains("handed over"), "{millis} ms: {why}");
        }
    }
}

#[test]
fn frozen_newcomer_is_given_up() {
    let mut given_up = 0;
    for millis in [0, 10, 40] {
        let place = Place::new();
        let quick = json!({ "handover": {
            "socket": place.directory.join("handover.sock"), "timeout": "1s",
        } });
        let first = place.start(quick.clone());
        let streams: Vec<_> = (0..800).map(|_| place.open()).collect();
        let mut second = Program::start(&place.config(quick));
        wait::pause(Duration::from_millis(millis));
        second.child.signal(Signal::STOP).unwrap();
        let says = |what| first.child.log().contains(what);
        let [gave_up, gave_all] = ["this process goes on", "\"handed over\""];
        let ended = || says(gave_up) || says(gave_all);
        wait::until("the handover to end", LIMIT, ended).unwrap();
        if says(gave_all) {
            continue; // before the newcomer froze
        }
        given_up += 1;
        assert_eq!(readiness(&first).unwrap().0, 200);
        let moved = counted(&first, "out", "moved");
        assert_eq!(active(&first), 800.0 - moved, "{millis} ms");
        second.child.signal(Signal::CONT).unwrap();
        let streams = served(streams);
        assert_eq!(streams.len(), 800, "{millis} ms");
        let ready = || readiness(&second).is_some_and(|(status, _)| status == 200);
        wait::until("the newcomer to serve", LIMIT, ready).unwrap();
        let active = (active(&first), active(&second));
        assert_eq!(active, (800.0 - moved, moved), "{millis} ms");
        // Both accept; the one that ends takes nothing of the other's along.
        second.child.signal(Signal::TERM).unwrap();
        (0..20).for_each(|_| drop(finish(place.open())));
        drop(streams);
        assert_eq!(second.child.wait_exit(LIMIT).unwrap().code(), Some(0));
        (0..20).for_each(|_| drop(finish(place.open())));
    }
    assert!(given_up > 0, "each newcomer had all before it froze");
}

#[test]
fn directory_of_others_is_refused() {
    let place = Place::new();
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(place.directory.path(), open).unwrap();
    let path = place
        .directory
        .write("proxy.yaml", place.config(json!({})).to_string())
        .unwrap();
    let output = program().arg("--config").arg(path).output().unwrap();
    let log = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success(), "{log}");
    assert!(log.contains("must be a directory of user"), "{log}");
}

#[test]
fn sockets_of_dead_processes_are_removed() {
    let place = Place::new();
    let socket = |name: &str, age: &str| {
        let path = place.directory.join(name);
        drop(UnixListener::bind(&path).unwrap());
        let touch = Command::new("touch").args(["-d", age]).arg(&path).status();
        assert!(touch.unwrap().success());
        path
    };
    let dead = socket("handover.sock.1-1", "1 minute ago");
    // As of a process that is about to listen.
    let young = socket("handover.sock.1-2", "now");
    let other = socket("other.sock.1-3", "1 minute ago");
    let _first = place.start(json!({}));
    let there = [dead, young, other].map(|path| path.exists());
    assert_eq!(there, [false, true, true]);
}

#[test]
fn connections_follow_once_established() {
    let place = Place::new();
    let (consent, consents) = std::sync::mpsc::channel::<()>();
    let consents = std::sync::Arc::new(std::sync::Mutex::new(consents));
    let gateway = Scripted::start(move |mut stream: TcpStream| {
        let head = read_head(&mut stream);
        consents.lock().unwrap().recv_timeout(LIMIT).unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nhello").unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
        head
    });
    let by_connect = json!({ "upstream": by_connect(gateway.addr) });
    let first = place.start(by_connect.clone());
    let mut early = place.connect();
    wait::until("the connection", LIMIT, || active(&first) == 1.0).unwrap();
    let second = place.start(by_connect);
    assert_eq!((active(&first), active(&second)), (1.0, 0.0));
    consent.send(()).unwrap();
    assert_eq!(read(&mut early, 5), b"hello");
    wait::until("it to follow", LIMIT, || active(&second) == 1.0).unwrap();
    assert_eq!(active(&first), 0.0);
    assert!(finish(early).is_empty());
    assert!(gateway.outcome().starts_with("CONNECT "));
    wait::until("its end in the log", LIMIT, || ends(&second).len() == 1).unwrap();
}

/// Sends a frame, and returns the JSON of the one that comes back.
fn says(stream: &mut UnixStream, json: &str) -> Value {
    say(stream, json);
    hears(stream)
}

fn say(stream: &mut UnixStream, json: &str) {
    let length = u32::try_from(json.len()).unwrap().to_be_bytes();
    stream
        .write_all(&[&length[..], &[0; 8], json.as_bytes()].concat())
        .unwrap();
}

fn hears(stream: &mut UnixStream) -> Value {
    let mut head = [0; 12];
    stream.read_exact(&mut head).unwrap();
    let mut json = vec![0; u32::from_be_bytes(*head.first_chunk().unwrap()) as usize];
    stream.read_exact(&mut json).unwrap();
    serde_json::from_slice(&json).unwrap()
}

#[test]
fn other_versions_and_garbage_do_no_harm() {
    let place = Place::new();
    let first = place.start(json!({}));
    let mut client = place.open();
    let come = || {
        let stream = UnixStream::connect(place.directory.join("handover.sock")).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream
    };
    let answer = says(&mut come(), r#"{"type":"hello","lowest":2,"highest":3}"#);
    assert_eq!(answer["type"], "refused", "{answer}");
    // One that is newer by a version, and says more than this one knows.
    let later = r#"{"type":"hello","lowest":1,"highest":2,"later":true}"#;
    let answer = says(&mut come(), later);
    assert_eq!(answer, json!({ "type": "agreed", "version": 1 }));
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 64], &[0; 12], b""] {
        let mut stream = come();
        stream.write_all(garbage).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        // Nothing is said to it.
        assert!(!matches!(stream.read(&mut [0]), Ok(1)), "{garbage:?}");
    }
    says_back(&mut client, b"still here");
    // The third of three waits for its time, and starts as if there were no handover.
    let mut silent = come();
    silent.write_all(&[0]).unwrap();
    let quick = json!({ "handover": {
        "socket": place.directory.join("handover.sock"), "timeout": "1s",
    } });
    let second = place.start(quick);
    assert_eq!((active(&first), active(&second)), (1.0, 0.0));
    let labels = [("direction", "in"), ("outcome", "given_up")];
    let given_up = metrics(second.probes).value("rhizome_handovers_total", &labels);
    assert_eq!(given_up, Some(1.0));
    says_back(&mut client, b"still here");
}

#[test]
fn queue_that_newcomer_does_not_have_is_served() {
    let place = Place::new();
    let first = place.start(json!({}));
    // A newcomer that closes the sockets that come, as of a listener that it does not know.
    let mut newcomer = UnixStream::connect(place.directory.join("handover.sock")).unwrap();
    newcomer.set_read_timeout(Some(LIMIT)).unwrap();
    let hello = r#"{"type":"hello","lowest":1,"highest":1}"#;
    assert_eq!(says(&mut newcomer, hello)["type"], "agreed");
    assert_eq!(hears(&mut newcomer)["type"], "sockets");
    let settled = says(&mut newcomer, r#"{"type":"serving"}"#);
    assert_eq!(settled["type"], "settled");
    // Nothing accepts while it is asked.
    let mut client = place.connect();
    client.write_all(b"?").unwrap();
    assert_eq!(active(&first), 0.0);
    say(&mut newcomer, r#"{"type":"taken"}"#);
    drop(newcomer);
    assert!(read(&mut client, 28 + 1).ends_with(b"?"));
}

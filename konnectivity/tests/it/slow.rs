//! Readers slower than a peer without flow control sends.
//!
//! The agent's double leaves out Go's scheduler and grpc-go's own buffer. The server's double leaves out the queues
//! altogether: a test sends in turns itself.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use testkit::konnectivity::{FakeFrontend, FakeServer, HttpFrontend, ServerOptions, Tunnel};
use testkit::upstream::{Behavior, Upstream};
use testkit::wait::{self, Stopwatch};

use crate::support::{
    Agent, AgentFlags, Held, Kind, LIMIT, Mode, Pki, Rig, SERVICE, ServerFlags, tunnel,
};

/// Bytes a second.
const PACE: u64 = 1 << 20;
/// How long anything of the others may take.
const OTHERS: Duration = Duration::from_millis(1500);

/// Reads at a pace in the background, and counts.
struct Slow {
    stop: Arc<AtomicBool>,
    took: Arc<AtomicU64>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Slow {
    fn start(mut from: impl Read + Send + 'static) -> Self {
        let (stop, took) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&took));
        let thread = std::thread::spawn(move || {
            let clock = Stopwatch::start();
            let mut part = vec![0; 32 << 10];
            while !stopped.load(Ordering::Relaxed) && from.read_exact(&mut part).is_ok() {
                let took = counted.fetch_add(part.len() as u64, Ordering::Relaxed);
                let due = Duration::from_millis(took * 1000 / PACE);
                let _ = wait::until("its turn", LIMIT, || clock.elapsed() >= due);
            }
        });
        Self {
            stop,
            took,
            thread: Some(thread),
        }
    }

    /// Waits until it took what it could in `time`, but for the first and last moment.
    fn assert_served(&self, time: Duration) {
        let took = self.took.load(Ordering::Relaxed);
        let due = PACE * (time.as_secs() - 1);
        assert!(took >= due, "{took} of {due}");
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        drop(self.thread.take().map(std::thread::JoinHandle::join));
    }
}

/// Has others exchange and dial for some time, and returns the longest wait.
fn others(frontend: &FakeFrontend, time: Duration) -> Duration {
    let echo = Upstream::start(Behavior::Echo).unwrap();
    let mut old = tunnel(frontend, echo.addr());
    let (clock, mut longest) = (Stopwatch::start(), Duration::ZERO);
    while clock.elapsed() < time {
        let wait = Stopwatch::start();
        assert_eq!(old.echo(b"old").unwrap(), b"old");
        longest = longest.max(wait.elapsed());
        let wait = Stopwatch::start();
        let new = tunnel(frontend, echo.addr());
        longest = longest.max(wait.elapsed());
        drop(new);
    }
    longest
}

fn endless() -> Upstream {
    Upstream::start(Behavior::Source { bytes: u64::MAX }).unwrap()
}

/// Reads slowly through `frontend`.
fn served(frontend: &FakeFrontend) {
    let source = endless();
    let Tunnel { reader, writer } = tunnel(frontend, source.addr());
    let (clock, slow) = (Stopwatch::start(), Slow::start(reader));
    let longest = others(frontend, Duration::from_secs(12));
    slow.assert_served(clock.elapsed());
    assert!(longest < OTHERS, "{longest:?}");
    drop((slow, writer));
}

#[test]
fn slow_http_reader_of_upstream_agent_is_served() {
    let rig = Rig::start(Mode::Http, Kind::Go);
    served(&rig.frontend);
    rig.wait_idle();
}

#[test]
fn slow_grpc_reader_of_upstream_agent_is_served() {
    let rig = Rig::start(Mode::Grpc, Kind::Go);
    served(&rig.frontend);
    rig.wait_idle();
}

#[test]
fn slow_tls_reader_of_upstream_agent_is_served() {
    let rig = Rig::of(ServerFlags::new(Mode::Http).tcp(), Mode::Http, Kind::Go);
    let pki = rig.server.pki();
    let authority = pki.authority.pem();
    let frontend = HttpFrontend::tls(
        rig.server.frontends(),
        SERVICE,
        authority,
        Some(&pki.client),
    );
    served(&FakeFrontend::Http(frontend.unwrap()));
    rig.wait_idle();
}

/// To close a connection, upstream's agent first sends what it has read of it, and hears nothing meanwhile.
#[test]
fn downloads_that_end_behind_stalled_readers_stall_no_other() {
    for (mode, stalled) in [(Mode::Http, 5), (Mode::Grpc, 1)] {
        let rig = Rig::start(mode, Kind::Go);
        let (source, echo) = (endless(), Upstream::start(Behavior::Echo).unwrap());
        let readers: Vec<_> = (0..stalled)
            .map(|_| tunnel(&rig.frontend, source.addr()))
            .collect();
        let mut longest = Duration::ZERO;
        for _ in 0..3 {
            let mut download = tunnel(&rig.frontend, source.addr());
            let mut part = vec![0; 1 << 20];
            download.reader.read_exact(&mut part).unwrap();
            drop(download);
            let wait = Stopwatch::start();
            let mut next = tunnel(&rig.frontend, echo.addr());
            assert_eq!(next.echo(b"next").unwrap(), b"next");
            longest = longest.max(wait.elapsed());
        }
        assert!(longest < OTHERS, "{mode:?}, {stalled}: {longest:?}");
        drop(readers);
        rig.wait_idle();
    }
}

/// As many at once cost others what one costs.
#[test]
fn stalled_readers_of_upstream_agent_stall_no_other() {
    for mode in [Mode::Http, Mode::Grpc] {
        let rig = Rig::start(mode, Kind::Go);
        // More than waits anywhere, and not so much that an agent that first sends it is busy for long.
        let source = Upstream::start(Behavior::Source { bytes: 3 << 20 }).unwrap();
        // At once, or the first are cut before the last are there.
        let dials = (0..100).map(|_| {
            let (frontend, addr) = (rig.server.frontend(), source.addr());
            std::thread::spawn(move || tunnel(&frontend, addr))
        });
        let dials: Vec<_> = dials.collect();
        let stalled: Vec<_> = dials.into_iter().map(|dial| dial.join().unwrap()).collect();
        let longest = others(&rig.frontend, Duration::from_secs(8));
        assert!(longest < OTHERS, "{longest:?}");
        rig.server.wait_established(100);
        drop(stalled);
        rig.wait_idle();
    }
}

#[test]
fn stalled_reader_of_upstream_agent_goes_on() {
    const COUNT: u64 = 48 << 20;
    for mode in [Mode::Http, Mode::Grpc] {
        let rig = Rig::start(mode, Kind::Go);
        let source = Upstream::start(Behavior::Source { bytes: COUNT }).unwrap();
        let mut stalled = rig.tunnel(source.addr());
        let longest = others(&rig.frontend, Duration::from_secs(4));
        assert!(longest < OTHERS, "{longest:?}");
        assert_eq!(stalled.reader.rest().unwrap().len() as u64, COUNT);
        rig.wait_idle();
    }
}

#[test]
fn slow_destination_of_upstream_server_is_served() {
    let pki = Arc::new(Pki::new());
    let mut options = ServerOptions::new("one", &pki.server);
    options.clients_pem = Some(pki.authority.pem().to_owned());
    let server = FakeServer::start(&options).unwrap();
    let _agent: Agent = AgentFlags::new(&pki, "ours", server.addr()).start();
    let mut link = server.accept(LIMIT).unwrap();
    let destination = Held::new();
    let id = link.dial(&destination.addr().to_string()).unwrap();
    let slow = Slow::start(destination.accept());
    let echo = Upstream::start(Behavior::Echo).unwrap();
    let other = link.dial(&echo.addr().to_string()).unwrap();
    let part = vec![7; 32 << 10];
    let clock = Stopwatch::start();
    let mut longest = Duration::ZERO;
    while clock.elapsed() < Duration::from_secs(12) {
        link.write(id, &part).unwrap();
        let wait = Stopwatch::start();
        link.write(other, b"x").unwrap();
        assert_eq!(link.read(other, 1).unwrap(), b"x");
        longest = longest.max(wait.elapsed());
    }
    slow.assert_served(clock.elapsed());
    assert!(longest < OTHERS, "{longest:?}");
}

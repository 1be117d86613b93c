//! `rhizome-bench handover`: what connections notice while one node proxy follows another.
//!
//! ```text
//! idle, watches, bulk ──▶ apiserver-proxy 1 ─▶ 2 ─▶ … ──▶ backend
//!   └─ every byte compared, every pause noted ◀────────────┘
//! ```
//!
//! Load and backend are one process; each connection says what its backend does: nothing until it is asked,
//! an event each 100 ms, or bulk at a rate. The pauses of an equally long time without a handover are beside
//! those with one.

use std::cell::Cell;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{Args, value_parser};
use testkit::background::Background;
use testkit::http;
use testkit::process::{ChildGuard, Signal};
use testkit::tempdir::TempDir;
use testkit::wait;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::LocalSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use crate::cpus::{Cpus, Role};
use crate::latency::Latencies;
use crate::output::Output;
use crate::programs::program;
use crate::report::{Bound, Figure, Known, Run};
use crate::{interrupt, limits, machine};

/// Connections while one node proxy takes over from another.
#[derive(Args, Debug)]
pub(crate) struct Handover {
    /// Handovers, one after the other.
    #[arg(long, default_value_t = 10, value_parser = value_parser!(u32).range(1..=1000))]
    rolls: u32,
    /// Connections that say nothing in between.
    #[arg(long, default_value_t = 5000)]
    idle: usize,
    /// Connections with an event each 100 ms.
    #[arg(long, default_value_t = 500)]
    watches: usize,
    /// Connections with 2 MB/s of bulk.
    #[arg(long, default_value_t = 50)]
    bulk: usize,
    /// `apiserver-proxy`; by default the one beside this program.
    #[arg(long)]
    proxy: Option<PathBuf>,
}

pub(crate) fn run(asked: &Handover, output: &Output) -> Result<ExitCode> {
    limits::raise()?;
    interrupt::watch()?;
    let mut facts = machine::facts();
    let cpus = Cpus::apart()?.bind_load()?;
    let program = program(asked.proxy.as_ref(), "apiserver-proxy")?;
    facts.push(("program", program.display().to_string()));
    let dir = TempDir::new("bench-handover")?;
    std::fs::set_permissions(
        dir.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o700),
    )?;
    let free = testkit::ports::free(1)?;
    let at = SocketAddr::from((Ipv4Addr::LOCALHOST, free[0]));
    let load = Load::start()?;
    let start = |number: u32| -> Result<(ChildGuard, SocketAddr)> {
        let config = format!(
            "listen: [\"{at}\"]\nupstream: {{ address: \"{}\", mode: proxy-protocol }}\n\
             interface: {{ manage: false }}\nprobes: {{ address: \"127.0.0.1:{}\" }}\n\
             drain: {{ delay: 0s, timeout: 30s }}\n\
             handover: {{ socket: \"{}\" }}\n",
            load.backend,
            testkit::ports::free(1)?[0],
            dir.join("handover.sock").display(),
        );
        let probes = config
            .split("address: \"127.0.0.1:")
            .last()
            .unwrap_or_default();
        let port: u16 = probes.split('"').next().unwrap_or_default().parse()?;
        let path = dir.write(format!("{number}.yaml"), &config)?;
        let mut command = cpus.command(Role::Proxy, &program)?;
        command.arg("--config").arg(path);
        let mut child = ChildGuard::spawn(
            "apiserver-proxy",
            &command,
            &dir.join(format!("{number}.log")),
        )?;
        let probes = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let ready = || {
            http::get(&http::Target::plain(probes), "/readyz")
                .is_ok_and(|answer| answer.status == 200)
        };
        child.wait_ready(LIMIT, ready)?;
        Ok((child, probes))
    };

    let mut run = Run::default();
    let (mut serving, _) = start(0)?;
    load.open(at, asked)?;
    wait::pause(REST);
    let accepted = serving.usage()?;
    let steady = load.pauses(REST)?;
    pauses(&mut run, "steady", &steady);
    // Of all rolls: a median would hide that of one.
    let (mut longest, mut ended, mut wrong) = (Duration::ZERO, 0, 0);
    for number in 1..=asked.rolls {
        let began = Instant::now();
        let during = load.during(|| {
            let (newer, _) = start(number)?;
            let took = began.elapsed();
            wait::pause(REST.saturating_sub(took));
            serving.signal(Signal::TERM)?;
            let status = serving.wait_exit(LIMIT)?;
            ensure!(status.success(), "the older process ended with {status}");
            serving = newer;
            Ok(took)
        });
        let (took, all) = during?;
        run.add("rhizome", "roll", TOOK, took.as_secs_f64() * 1e3);
        pauses(&mut run, "roll", &all);
        longest = longest.max(all.max());
        (ended, wrong) = load.ask_idle()?;
        let usage = serving.usage()?;
        let percent = |now: f64, then: f64| (now / then - 1.0) * 100.0;
        run.add(
            "rhizome",
            "roll",
            MEMORY,
            percent(usage.rss_kib as f64, accepted.rss_kib as f64),
        );
        let descriptors = (usage.descriptors as f64, accepted.descriptors as f64);
        run.add(
            "rhizome",
            "roll",
            DESCRIPTORS,
            percent(descriptors.0, descriptors.1),
        );
    }
    run.add("rhizome", "roll", LONGEST, longest.as_secs_f64() * 1e3);
    run.add("rhizome", "roll", ENDED, ended as f64);
    run.add("rhizome", "roll", WRONG, wrong as f64);
    let known = |_: &Run, _: &str, case: &str, figure: Figure| Known {
        must: (case == "roll").then(|| bound(figure)).flatten(),
        peer: None,
    };
    output.finish(&mut run, facts, &[], "", known)
}

fn bound(figure: Figure) -> Option<Bound> {
    let bounds = [
        (P99, 50.0),
        (LONGEST, 250.0),
        (ENDED, 0.0),
        (WRONG, 0.0),
        (MEMORY, 10.0),
        (DESCRIPTORS, 10.0),
    ];
    let found = bounds.iter().find(|(own, _)| own.name == figure.name);
    found.map(|(_, most)| Bound::AtMost(*most))
}

fn pauses(run: &mut Run, case: &str, all: &Latencies) {
    run.add("rhizome", case, P99, all.quantile(0.99).as_secs_f64() * 1e3);
}

/// The connections, on a thread of their own.
struct Load {
    backend: SocketAddr,
    asks: mpsc::UnboundedSender<Ask>,
    seen: Arc<Seen>,
    _thread: Background,
}

#[derive(Debug, Default)]
struct Seen {
    /// Connections that ended, and bytes that were not as sent.
    ended: AtomicU64,
    wrong: AtomicU64,
}

enum Ask {
    Open(SocketAddr, [usize; 3], std::sync::mpsc::Sender<Result<()>>),
    /// Begin to note pauses anew; or return those noted: of each connection the longest.
    Begin,
    Pauses(std::sync::mpsc::Sender<Latencies>),
    /// Have every idle connection say a word; returns how many do not answer.
    Idle(std::sync::mpsc::Sender<u64>),
}

impl Load {
    fn start() -> Result<Self> {
        let (asks, asked) = mpsc::unbounded_channel();
        let (sender, bound) = std::sync::mpsc::channel();
        let seen = Arc::new(Seen::default());
        let shared = Arc::clone(&seen);
        let thread = Background::spawn("load", move || async {
            let serving = serve(sender, asked, shared);
            LocalSet::new().run_until(serving).await;
        })?;
        let backend = bound.recv_timeout(LIMIT).context("no backend")?;
        Ok(Self {
            backend,
            asks,
            seen,
            _thread: thread,
        })
    }

    fn ask<T>(&self, ask: impl FnOnce(std::sync::mpsc::Sender<T>) -> Ask) -> Result<T> {
        let (sender, answer) = std::sync::mpsc::channel();
        self.asks
            .send(ask(sender))
            .ok()
            .context("the load has ended")?;
        answer
            .recv_timeout(LIMIT)
            .context("no answer from the load")
    }

    fn open(&self, at: SocketAddr, asked: &Handover) -> Result<()> {
        let kinds = [asked.idle, asked.watches, asked.bulk];
        self.ask(|answer| Ask::Open(at, kinds, answer))?
    }

    /// Returns each connection's longest pause while `what` is done, and what it returns.
    fn during<T>(&self, what: impl FnOnce() -> Result<T>) -> Result<(T, Latencies)> {
        let _ = self.asks.send(Ask::Begin);
        let done = what()?;
        Ok((done, self.ask(Ask::Pauses)?))
    }

    fn pauses(&self, time: Duration) -> Result<Latencies> {
        let (_, all) = self.during(|| {
            wait::pause(time);
            Ok(())
        })?;
        Ok(all)
    }

    /// Asks every idle connection for a word; returns how many of all connections have ended or do not
    /// answer, and wrong bytes, so far.
    fn ask_idle(&self) -> Result<(u64, u64)> {
        let silent = self.ask(Ask::Idle)?;
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Ok((of(&self.seen.ended) + silent, of(&self.seen.wrong)))
    }
}

/// The longest pause of a connection since it was last asked.
#[derive(Debug)]
struct Pause {
    longest: Cell<Duration>,
    /// When something came last, and how often it should.
    last: Cell<Instant>,
    each: Duration,
}

impl Pause {
    fn new(each: Duration) -> Self {
        Self {
            longest: Cell::default(),
            last: Cell::new(Instant::now()),
            each,
        }
    }

    fn note(&self, pause: Duration) {
        self.longest.set(self.longest.get().max(pause));
        self.last.set(Instant::now());
    }

    fn silent(&self) -> Duration {
        self.last.get().elapsed().saturating_sub(self.each)
    }

    /// Also of a pause that is not over.
    fn longest(&self) -> Duration {
        self.longest.get().max(self.silent())
    }
}

async fn serve(
    bound: std::sync::mpsc::Sender<SocketAddr>,
    mut asked: mpsc::UnboundedReceiver<Ask>,
    seen: Arc<Seen>,
) {
    let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await else {
        return;
    };
    let Ok(address) = listener.local_addr() else {
        return;
    };
    let _ = bound.send(address);
    tokio::task::spawn_local(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::task::spawn_local(backend(stream));
        }
    });
    let mut all: Vec<Rc<Pause>> = Vec::new();
    let (round, rounds) = watch::channel(0_u64);
    // The round that each idle connection answered last.
    let mut idle: Vec<Rc<Cell<u64>>> = Vec::new();
    while let Some(ask) = asked.recv().await {
        match ask {
            Ask::Open(at, [idles, watches, bulk], done) => {
                let kinds = [(b'i', idles), (b'w', watches), (b'b', bulk)];
                let mut opened = Ok(());
                for (kind, count) in kinds {
                    for _ in 0..count {
                        match open(at, kind).await {
                            Ok(stream) => {
                                let each = if kind == b'w' { EVENT } else { CHUNK_EACH };
                                let pause = Rc::new(Pause::new(each));
                                let answered = Rc::new(Cell::new(0));
                                if kind == b'i' {
                                    idle.push(Rc::clone(&answered));
                                } else {
                                    all.push(Rc::clone(&pause));
                                }
                                let (seen, rounds) = (Arc::clone(&seen), rounds.clone());
                                tokio::task::spawn_local(async move {
                                    let done = match kind {
                                        b'i' => {
                                            ask_when_told(stream, rounds, &answered, &seen).await
                                        }
                                        b'w' => follow(stream, &pause, &seen).await,
                                        _ => take(stream, &pause, &seen).await,
                                    };
                                    let _ = done;
                                    seen.ended.fetch_add(1, Ordering::Relaxed);
                                    answered.set(u64::MAX); // it is waited for no more
                                });
                            }
                            Err(error) => opened = Err(error),
                        }
                    }
                }
                let _ = done.send(opened);
            }
            Ask::Begin => all
                .iter()
                .for_each(|pause| pause.longest.set(Duration::ZERO)),
            Ask::Pauses(answer) => {
                let mut pauses = Latencies::default();
                all.iter().for_each(|pause| pauses.record(pause.longest()));
                let _ = answer.send(pauses);
            }
            Ask::Idle(answer) => {
                round.send_modify(|round| *round += 1);
                let (now, due) = (*round.borrow(), Instant::now() + WORD);
                let silent = || idle.iter().filter(|answered| answered.get() < now).count();
                while silent() > 0 && Instant::now() < due {
                    sleep(CHUNK_EACH).await;
                }
                let _ = answer.send(silent() as u64);
            }
        }
    }
}

/// What a backend does with a connection, by its first byte behind the PROXY header.
async fn backend(mut stream: TcpStream) -> Result<()> {
    let mut head = [0; HEADER + 1];
    stream.read_exact(&mut head).await?;
    stream.set_nodelay(true)?;
    match head[HEADER] {
        b'w' => {
            let mut due = interval(EVENT);
            due.set_missed_tick_behavior(MissedTickBehavior::Delay);
            for number in 0_u64.. {
                due.tick().await;
                let mut event = number.to_be_bytes().to_vec();
                event.extend(nanos().to_be_bytes());
                stream.write_all(&event).await?;
            }
        }
        b'b' => {
            let mut due = interval(CHUNK_EACH);
            due.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let mut at = 0_u64;
            loop {
                due.tick().await;
                let chunk: Vec<u8> = (0..CHUNK).map(|next| byte(at + next)).collect();
                at += CHUNK;
                stream.write_all(&chunk).await?;
            }
        }
        _ => loop {
            let word = stream.read_u64().await?;
            stream.write_u64(word + 1).await?;
        },
    }
    Ok(())
}

async fn open(at: SocketAddr, kind: u8) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(at).await?;
    stream.set_nodelay(true)?;
    stream.write_all(&[kind]).await?;
    Ok(stream)
}

/// An idle connection, which says a word when told.
async fn ask_when_told(
    mut stream: TcpStream,
    mut rounds: watch::Receiver<u64>,
    answered: &Cell<u64>,
    seen: &Seen,
) -> Result<()> {
    loop {
        rounds.changed().await?;
        let word = *rounds.borrow_and_update();
        stream.write_u64(word).await?;
        if stream.read_u64().await? != word + 1 {
            seen.wrong.fetch_add(8, Ordering::Relaxed);
        }
        answered.set(word);
    }
}

/// A watch: how late each event is.
async fn follow(mut stream: TcpStream, pause: &Pause, seen: &Seen) -> Result<()> {
    for number in 0_u64.. {
        let (got, sent) = (stream.read_u64().await?, stream.read_u64().await?);
        pause.note(Duration::from_nanos(nanos().saturating_sub(sent)));
        if got != number {
            seen.wrong.fetch_add(8, Ordering::Relaxed);
        }
    }
    Ok(())
}

/// Bulk: how long nothing came, beyond what its rate is.
async fn take(mut stream: TcpStream, pause: &Pause, seen: &Seen) -> Result<()> {
    let (mut at, mut buffer) = (0_u64, vec![0; 64 * 1024]);
    loop {
        let read = stream.read(&mut buffer).await?;
        ensure!(read > 0, "ended");
        pause.note(pause.silent());
        let chunk = buffer.get(..read).unwrap_or_default();
        let wrong = chunk
            .iter()
            .zip(at..)
            .filter(|(got, at)| **got != byte(*at));
        seen.wrong
            .fetch_add(wrong.count() as u64, Ordering::Relaxed);
        at += read as u64;
    }
}

/// The byte at a place of endless bulk.
fn byte(at: u64) -> u8 {
    (at % 251) as u8 ^ (at / 4096) as u8
}

fn nanos() -> u64 {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    let since = START.get_or_init(Instant::now).elapsed();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

const TOOK: Figure = Figure::lower("until the newcomer is ready", "ms");
const P99: Figure = Figure::lower("longest pause, p99 of relays", "ms");
const LONGEST: Figure = Figure::lower("longest pause of all", "ms");
const ENDED: Figure = Figure::lower("connections ended", "");
const WRONG: Figure = Figure::lower("bytes wrong", "");
const MEMORY: Figure = Figure::lower("memory beyond having accepted them", "%");
const DESCRIPTORS: Figure = Figure::lower("descriptors beyond that", "%");
/// Bytes of a PROXY header 2 of IPv4 without TLVs.
const HEADER: usize = 28;
const EVENT: Duration = Duration::from_millis(100);
const CHUNK: u64 = 20_000;
const CHUNK_EACH: Duration = Duration::from_millis(10);
const REST: Duration = Duration::from_secs(3);
const LIMIT: Duration = Duration::from_secs(60);
/// For an idle connection's answer.
const WORD: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use testkit::background;

    use super::*;

    #[test]
    fn lost_idle_connection_is_counted_once() {
        let load = Load::start().unwrap();
        let backend = load.backend;
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let at = listener.local_addr().unwrap();
        let (cut, cutting) = watch::channel(false);
        let mut first = true;
        let relay = move |mut client: TcpStream, _| {
            let (first, mut cutting) = (std::mem::take(&mut first), cutting.clone());
            async move {
                let mut server = TcpStream::connect(backend).await.unwrap();
                server.write_all(&[0; HEADER]).await.unwrap();
                tokio::select! {
                    _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
                    _ = cutting.wait_for(|cut| *cut), if first => {}
                }
            }
        };
        let _proxy = Background::spawn("proxy", || background::accept(listener, relay)).unwrap();
        let asked = Handover {
            rolls: 1,
            idle: 3,
            watches: 0,
            bulk: 0,
            proxy: None,
        };
        load.open(at, &asked).unwrap();
        assert_eq!(load.ask_idle().unwrap(), (0, 0));
        cut.send(true).unwrap();
        let lost = || load.ask_idle().unwrap() == (1, 0);
        wait::until("the loss", LIMIT, lost).unwrap();
        assert!(lost(), "it is not waited for again, nor counted");
    }
}

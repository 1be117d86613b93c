//! `rhizome-bench abuse`: what unauthenticated clients cost a gateway, and a hostile agent a
//! konnectivity-server.
//!
//! ```text
//! connections: silent, half an opening, junk ──▶ gateways of profiles, Envoy among them
//! datagrams: junk, handshakes of no key, data of no client ──▶ sni-proxy
//! agent: data of no tunnel, junk ──▶ konnectivity-server ◀── round trips of others
//! strangers: nothing, half a ClientHello, one ──▶ its ports for agents and API servers
//! ```
//!
//! CPU time and memory are those of the program under test alone, divided by what was sent.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{Args, value_parser};
use testkit::http;
use testkit::metrics::Metrics;
use testkit::netns::Place;
use testkit::process::ChildGuard;
use testkit::tempdir::TempDir;
use testkit::wait::{self, Stopwatch};

use crate::backend::{Backend, Command};
use crate::cpus::{Bound, Cpus, Role};
use crate::output::Output;
use crate::profile::{Case, Chosen, Listener, Profile, Route, Setting, Target, Tree};
use crate::programs::{given, program, value_name};
use crate::progress::Progress;
use crate::report::{self, Figure, Known, Run};
use crate::tls::opening::{LIMIT, Opening};
use crate::tls::{network, present};
use crate::{interrupt, konnectivity, limits, machine};

/// What unauthenticated clients cost: connections, datagrams, an agent's flood.
#[derive(Args, Debug)]
pub(crate) struct Abuse {
    #[command(flatten)]
    chosen: Chosen,
    /// Connections of each kind.
    #[arg(long, default_value_t = 2000, value_parser = value_parser!(u32).range(1..=9000))]
    connections: u32,
    /// Datagrams of each kind.
    #[arg(long, default_value_t = 40_000, value_parser = value_parser!(u32).range(1..=10_000_000))]
    datagrams: u32,
    /// `konnectivity-server`; by default the one beside this program.
    #[arg(long)]
    server: Option<PathBuf>,
    /// `konnectivity-agent`.
    #[arg(long)]
    agent: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug)]
enum Sent {
    /// Nothing.
    Silent,
    /// Half of what opens a connection.
    Half,
    Junk,
}

pub(crate) fn run(asked: &Abuse, output: &Output) -> Result<ExitCode> {
    limits::raise()?;
    interrupt::watch()?;
    network::inside(|place, network| measured(asked, output, place, network))
}

fn measured(asked: &Abuse, output: &Output, place: Place<'_>, network: &str) -> Result<ExitCode> {
    let mut facts = machine::facts();
    let cpus = Cpus::apart()?.bind_load()?;
    facts.push(("network", network.to_owned()));
    let listeners = [Listener::Sni, Listener::Proxy, Listener::Connect];
    let profiles = asked.chosen.profiles(&listeners)?;
    let profiles = profiles
        .into_iter()
        .filter(|one| !one.is_direct())
        .collect();
    let profiles = present(profiles, &asked.chosen.program, &mut facts);
    let mut run = Run::default();
    let mut progress = Progress::new(profiles.len() * 9 + 2);
    for profile in &profiles {
        for listener in listeners {
            for kind in [Sent::Silent, Sent::Half, Sent::Junk] {
                if profile.supports(listener, Case::Conns) {
                    let what = format!("{}: {}, {kind:?}", profile.name, value_name(listener));
                    progress.run(&what, || {
                        connections(asked, place, &cpus, (profile, listener, kind), &mut run)
                    });
                }
            }
        }
    }
    progress.run("datagrams", || datagrams(asked, place, &cpus, &mut run));
    progress.run("an agent", || {
        let floods =
            konnectivity::floods(asked.server.as_ref(), asked.agent.as_ref(), cpus.clone())?;
        run.rows.extend(floods.rows);
        Ok(())
    });
    let failures = std::mem::take(&mut progress.failures);
    let known = |_: &Run, _: &str, _: &str, figure: Figure| Known {
        must: (figure == konnectivity::UNANSWERED).then_some(report::Bound::AtMost(0.0)),
        peer: None,
    };
    output.finish(&mut run, facts, &failures, "", known)
}

/// Opens connections that no client of ours would, and looks at what they cost.
fn connections(
    asked: &Abuse,
    place: Place<'_>,
    cpus: &Bound,
    (profile, listener, kind): (&Profile, Listener, Sent),
    run: &mut Run,
) -> Result<()> {
    let backend = Backend::start(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
    let route = Route::numbered(0, backend.address());
    let words = Opening::new(Some(listener), &route, false).canned(Command::Echo, b"!");
    let said = match kind {
        Sent::Silent => Vec::new(),
        Sent::Half => words.first[..words.first.len() / 2].to_vec(),
        Sent::Junk => vec![b'x'; JUNK],
    };
    let setting = Setting {
        place,
        cpus,
        given: &asked.chosen.program,
        listener,
        routes: vec![route],
    };
    let target = Target::start(profile, &setting)?;
    let tree = target.tree().context("a program that is not known")?;
    drop(words.dial(target.address(), LIMIT)?);
    wait::pause(REST);
    let (cpu, memory) = (tree.cpu_time()?, tree.resident_kib()?);
    let mut open = Vec::new();
    for _ in 0..asked.connections {
        let mut stream = TcpStream::connect_timeout(&target.address(), LIMIT)?;
        stream.write_all(&said)?;
        open.push((stream, Stopwatch::start()));
    }
    wait::pause(REST);
    let count = f64::from(asked.connections);
    let cpu = tree.cpu_time()?.saturating_sub(cpu).as_secs_f64() * 1e6 / count;
    let memory = (tree.resident_kib()? as f64 - memory as f64) / count;
    let case = format!("{} {kind:?}", value_name(listener)).to_lowercase();
    run.add(&profile.name, &case, CPU, cpu);
    run.add(&profile.name, &case, MEMORY, memory);
    let (mut last, since) = open.pop().context("no connection")?;
    last.set_read_timeout(Some(PATIENCE))?;
    while since.elapsed() < PATIENCE && last.read(&mut [0; 4096]).is_ok_and(|read| read > 0) {}
    let kept = since.elapsed().min(PATIENCE);
    run.add(&profile.name, &case, CLOSED_AFTER, kept.as_secs_f64());
    Ok(())
}

/// Sends datagrams that no client of ours would, from one network and from many.
fn datagrams(asked: &Abuse, place: Place<'_>, cpus: &Bound, run: &mut Run) -> Result<()> {
    let dir = TempDir::new("bench-abuse")?;
    let (listen, probes) = (place.free_address()?, place.free_address()?);
    let server = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    let keys: Vec<String> = (0..KEYS).map(key).collect();
    let named = given(&asked.chosen.program, &["rhizome", "sni-proxy"]);
    let gateway = program(named, "sni-proxy")?;
    dir.write(
        "gateway.yaml",
        format!(
            "workers: 1\nadmin: {{ address: \"\" }}\nprobes: {{ address: \"{probes}\" }}\n\
             listeners: [{{ name: wg, address: \"{listen}\", protocol: wireguard }}]\n\
             routing: {{ file: routes.yaml }}\n"
        ),
    )?;
    dir.write(
        "routes.yaml",
        format!(
            "clusters: [{{ name: c, endpoints: [{{ address: \"{}\" }}] }}]\n\
             routes: [{{ wireguard: {{ routeId: 1, publicKeys: {keys:?} }}, cluster: c }}]\n",
            server.local_addr()?
        ),
    )?;
    for (kind, first) in [
        ("junk", 9),
        ("handshake of no key", 1),
        ("data of no client", 4),
    ] {
        let mut datagram = [0; 148];
        (datagram[0], datagram[5]) = (first, 1 << 4);
        for (from, networks) in [("one network", 1), ("many", NETWORKS)] {
            let bound = cpus.command(Role::Proxy, &gateway)?;
            let mut command = place.command(bound.get_program());
            command
                .args(bound.get_args())
                .arg("--config")
                .arg(dir.join("gateway.yaml"));
            let mut child = ChildGuard::spawn("sni-proxy", &command, &dir.join("log"))?;
            child.wait_listening(probes, LIMIT)?;
            let tree = Tree::of(child.pid());
            wait::pause(REST);
            let (cpu, memory) = (tree.cpu_time()?, tree.resident_kib()?);
            let bind = |network| UdpSocket::bind((Ipv4Addr::new(127, 1, network, 1), 0));
            let sockets = (0..networks).map(bind).collect::<Result<Vec<_>, _>>()?;
            for nth in 0..asked.datagrams {
                sockets[nth as usize % sockets.len()].send_to(&datagram, listen)?;
                if nth % BURST == 0 {
                    wait::pause(Duration::from_millis(1));
                }
            }
            wait::pause(REST);
            let count = f64::from(asked.datagrams);
            let cpu = tree.cpu_time()?.saturating_sub(cpu).as_secs_f64() * 1e6 / count;
            let grown = tree.resident_kib()? as f64 - memory as f64;
            let metrics = http::get(&http::Target::plain(probes), "/metrics")?;
            let metrics = Metrics::parse(&metrics.text())?;
            let of = |name| metrics.value(name, &[]).unwrap_or_default();
            let seen = of(DROPPED) + of(FORWARDED);
            ensure!(
                seen >= 0.99 * count,
                "{seen} of {count} datagrams were seen"
            );
            let case = format!("wireguard {kind}, {from}");
            run.add("rhizome", &case, CPU, cpu);
            run.add("rhizome", &case, GROWN, grown / 1024.0);
        }
    }
    Ok(())
}

/// Returns a public key, 32 bytes in base64, that belongs to no server.
fn key(nth: usize) -> String {
    format!("{:A<42}A=", format!("{nth:04}"))
}

const DROPPED: &str = "rhizome_wireguard_dropped_total";
const FORWARDED: &str = "rhizome_wireguard_datagrams_total";
const CPU: Figure = Figure::lower("cpu each", "µs");
const MEMORY: Figure = Figure::lower("memory each", "KiB");
const GROWN: Figure = Figure::lower("memory growth", "MiB");
/// The whole of [`PATIENCE`] where it was not closed.
const CLOSED_AFTER: Figure = Figure::lower("closed after", "s");
const JUNK: usize = 512;
const KEYS: usize = 64;
const NETWORKS: u8 = 250;
/// Datagrams between two pauses: fewer than a socket's buffer holds.
const BURST: u32 = 64;
const REST: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(20);

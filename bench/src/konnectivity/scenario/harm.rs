//! What one tunnel does to others, and what is left when clients misbehave.
//!
//! ```text
//! stall     n tunnels are not read from ──▶ round trips and dials of the others go on?
//! abandon   a frozen agent, dials given up ──▶ nothing is left once it goes on?
//! soak      very many dials ──▶ descriptors, tunnels and memory as before?
//! flood     an agent sends what belongs to no tunnel ──▶ round trips of the others go on?
//! stranger  a connection to a port of the server says nothing, or begins a handshake ──▶ its cost?
//! ```

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use testkit::client_hello::ClientHello;
use testkit::konnectivity::{AgentMetadata, Packet, connect};
use testkit::wait::{self, Stopwatch};
use tokio::io::AsyncWriteExt;
use tokio::task::JoinSet;

use super::figure as of;
use super::{CALM, Lab, Target, Usages};
use crate::backend::Command;
use crate::konnectivity::frontend::Frontend;
use crate::konnectivity::load::{self, Load, Outcome};
use crate::konnectivity::tunnel::Tunnel;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stalled {
    /// The destination, while the client sends.
    Destination,
    /// The client, while the destination sends.
    Reader,
}

/// A port of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Port {
    /// 8091 by default.
    Agents,
    /// 8090 by default; not there where API servers come by a UNIX socket.
    ApiServers,
}

impl Port {
    fn as_str(self) -> &'static str {
        match self {
            Self::Agents => "the agents' port",
            Self::ApiServers => "the API servers' port",
        }
    }

    /// Returns its address, and the name that its peers ask for.
    fn of(self, target: &Target) -> Result<(SocketAddr, String)> {
        match (self, &target.pair, &target.frontend) {
            (Self::Agents, Some(pair), _) => {
                let agents = &pair.agents;
                Ok((agents.addr, agents.server_name.clone()))
            }
            (Self::ApiServers, _, Frontend::Tls { addr, name, .. }) => {
                Ok((*addr, name.to_str().into_owned()))
            }
            (Self::Agents | Self::ApiServers, _, _) => bail!("{} is not known", self.as_str()),
        }
    }
}

/// Stalls `count` tunnels for `length`, while others exchange 64 bytes and dial.
pub(crate) fn stall(
    lab: &mut Lab,
    target: &Target,
    who: Stalled,
    count: usize,
    length: Duration,
) -> Result<()> {
    let case = match who {
        _ if count == 0 => "stall: none, to compare".to_owned(),
        Stalled::Destination => format!("stall: destination ×{count}"),
        Stalled::Reader => format!("stall: reader ×{count}"),
    };
    let echo = lab.backend.address();
    lab.warm_up(target, WARM_UP, 2)?;
    let before = target.usage()?;
    let stalled = lab
        .runtime
        .block_on(stalled(&target.frontend, echo, who, count))
        .context("stalling")?;
    full(lab, target)?;
    let (pings, dials) = lab
        .runtime
        .block_on(others(&target.frontend, echo, length))?;
    let full = target.usage()?;
    drop(stalled);
    lab.backend.release();
    let calm = lab.settle(|| Ok(lab.backend.open() == 0))?;

    let others = [of::OTHERS_P50, of::OTHERS_P99, of::OTHERS_MAX];
    let part = (case.as_str(), Some("others' rtt"));
    lab.add_latencies(target, part, others, &pings.latencies);
    let new = [of::DIALS_P50, of::DIALS_P99, of::DIALS_MAX];
    let part = (case.as_str(), Some("new dials"));
    lab.add_latencies(target, part, new, &dials.latencies);
    let unanswered = (pings.unanswered + dials.unanswered) as f64;
    lab.add(target, &case, of::UNANSWERED, unanswered);
    lab.add_growth(target, &case, &full, &before);
    lab.add(target, &case, of::CALM_AFTER, calm.as_secs_f64());
    lab.add(target, &case, of::LEAKED, lab.backend.open() as f64);
    Ok(())
}

/// Waits until every buffer toward the side that does not read is full, for a bounded time: the
/// pair has nothing to do any more.
fn full(lab: &Lab, target: &Target) -> Result<()> {
    let mut before = target.usage()?;
    lab.rest(FILLING);
    lab.settle(|| {
        let now = target.usage()?;
        let busy = now.cpu_since(&before);
        before = now;
        Ok(busy.is_none_or(|busy| busy <= 0.0))
    })?;
    Ok(())
}

/// Tunnels that are full, and what keeps them so; dropping it ends them.
struct Full {
    _unread: Vec<Tunnel>,
    _writers: JoinSet<()>,
}

async fn stalled(
    frontend: &Frontend,
    target: SocketAddr,
    who: Stalled,
    count: usize,
) -> Result<Full> {
    let (mut unread, mut writers) = (Vec::new(), JoinSet::new());
    for mut tunnel in load::hold(frontend, target, count).await? {
        match who {
            Stalled::Destination => {
                writers.spawn(async move {
                    let mut written = tunnel.write_all(&Command::Hold.bare()).await;
                    let chunk = vec![0; 64 * 1024];
                    while written.is_ok() {
                        written = tunnel.write_all(&chunk).await;
                    }
                });
            }
            Stalled::Reader => {
                load::ask(&mut tunnel, Command::Source, u64::MAX).await?;
                unread.push(tunnel);
            }
        }
    }
    Ok(Full {
        _unread: unread,
        _writers: writers,
    })
}

/// Pings on four tunnels, 500 a second each, and 40 dials a second, both in open loops.
async fn others(
    frontend: &Frontend,
    echo: SocketAddr,
    length: Duration,
) -> Result<(Outcome, Outcome)> {
    let load = |connections, interval| Load {
        connections,
        warm_up: Duration::from_millis(200),
        length,
        interval: Some(interval),
    };
    tokio::try_join!(
        load::pings(frontend, echo, load(4, Duration::from_millis(2))),
        load::dials(frontend, echo, load(2, Duration::from_millis(50))),
    )
}

/// Freezes the agent, gives up `count` dials, lets the agent go on and looks at what is left.
pub(crate) fn abandon(lab: &mut Lab, target: &mut Target, count: usize) -> Result<()> {
    let case = format!("abandon ×{count}");
    let echo = lab.backend.address();
    let frontend = target.frontend.clone();
    lab.warm_up(target, WARM_UP, 2)?;
    let before = target.usage()?;
    let pair = target.pair.as_mut();
    let pair = pair.context("only an agent started here can be frozen")?;
    pair.freeze_agent()?;
    lab.runtime.block_on(give_up(&frontend, echo, count));
    pair.thaw_agent()?;
    // The agent handles what was sent to it in order: one more dial, and it has seen the others.
    lab.runtime
        .block_on(load::many_dials(&frontend, echo, 1, 1))
        .context("dialing after the agent went on")?;
    lab.rest(CALM);
    leftovers(lab, target, &case, &before)
}

/// Dials at once and waits for none of them longer than [`PATIENCE`].
async fn give_up(frontend: &Frontend, echo: SocketAddr, count: usize) {
    let dials = (0..count).map(|_| {
        let frontend = frontend.clone();
        async move { drop(tokio::time::timeout(PATIENCE, frontend.dial(echo)).await) }
    });
    dials.collect::<JoinSet<()>>().join_all().await;
}

/// Dials `count` times, sixteen at a time, and looks at what is left.
pub(crate) fn soak(lab: &mut Lab, target: &Target, count: usize) -> Result<()> {
    let case = format!("soak, {count} dials");
    let echo = lab.backend.address();
    // A tenth of it first: allocators and tables reach their size.
    lab.warm_up(target, count / 10, AT_ONCE)?;
    let before = target.usage()?;
    let work = load::many_dials(&target.frontend, echo, count, AT_ONCE);
    lab.runtime.block_on(work)?;
    leftovers(lab, target, &case, &before)
}

/// Lets a second agent of the same cluster send data of no tunnel, or junk, as fast as the server
/// takes it, while others exchange 64 bytes. The server's flow control sets the pace.
pub(crate) fn flood(lab: &mut Lab, target: &Target, junk: bool, length: Duration) -> Result<()> {
    let echo = lab.backend.address();
    lab.warm_up(target, WARM_UP, 2)?;
    let pair = target.pair.as_ref().context("no agents' port is known")?;
    let sent = if junk {
        vec![0xff; PIECE]
    } else {
        let data = Packet::data(1 << 40, vec![0; PIECE]).encode();
        [&[0], &u32::try_from(data.len())?.to_be_bytes()[..], &data].concat()
    };
    let send = |over: &AtomicBool| -> Result<(f64, f64, Usages)> {
        wait::pause(BEFORE_FLOOD);
        let (mut links, mut pieces) = (0.0, 0.0);
        let (before, clock) = (target.usage()?, Stopwatch::start());
        while !over.load(Ordering::Relaxed) {
            let wire = connect(&pair.agents, &AgentMetadata::new("hostile"))?;
            links += 1.0;
            while !over.load(Ordering::Relaxed)
                && wire.send_bytes(std::slice::from_ref(&sent)).is_ok()
            {
                pieces += 1.0;
                if wire.wait_room(2 * PIECE).is_err() {
                    break;
                }
            }
        }
        Ok((links, pieces / clock.elapsed().as_secs_f64(), before))
    };
    let load = Load {
        connections: 4,
        warm_up: BEFORE_FLOOD * 2,
        length,
        interval: Some(Duration::from_millis(2)),
    };
    let over = AtomicBool::new(false);
    let (pings, flooded) = thread::scope(|scope| {
        let flood = scope.spawn(|| send(&over));
        let pings = load::pings(&target.frontend, echo, load);
        let pings = lab.runtime.block_on(pings);
        over.store(true, Ordering::Relaxed);
        (pings, flood.join())
    });
    let flooded = flooded.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    let (links, rate, before) = flooded?;
    let after = target.usage()?;
    let case = if junk { "flood: junk" } else { "flood: data" };
    let others = [of::OTHERS_P50, of::OTHERS_P99, of::OTHERS_MAX];
    let pings = pings?;
    let part = (case, Some("others' rtt"));
    lab.add_latencies(target, part, others, &pings.latencies);
    lab.add(target, case, of::UNANSWERED, pings.unanswered as f64);
    lab.add(target, case, of::FLOOD, rate);
    lab.add(target, case, of::LINKS, links);
    lab.add_some(target, case, of::CPU_BOTH, after.cpu_since(&before));
    lab.add_growth(target, case, &after, &before);
    Ok(())
}

/// Opens `count` connections to a port of a fresh pair's server, which send so many halves of a
/// ClientHello and no more.
pub(crate) fn strangers(
    lab: &mut Lab,
    target: &Target,
    port: Port,
    halves: usize,
    count: u32,
) -> Result<()> {
    lab.warm_up(target, WARM_UP, 2)?;
    let (addr, name) = port.of(target)?;
    let hello = ClientHello::for_name(&name).encode();
    let (before, mut open) = (target.usage()?, Vec::new());
    for _ in 0..count {
        let mut stream = TcpStream::connect(addr)?;
        stream.write_all(&hello[..hello.len() * halves / 2])?;
        open.push(stream);
    }
    let held = |now: &Usages| descriptors(now, &before)[0].unwrap_or_default();
    lab.settle(|| Ok(held(&target.usage()?) >= f64::from(count)))?;
    lab.rest(CALM);
    let after = target.usage()?;
    let held = held(&after);
    ensure!(
        held >= f64::from(count),
        "{held} of {count} strangers are held"
    );
    let sent = ["nothing", "half a hello", "a hello"][halves];
    let case = format!("stranger at {}: {sent}", port.as_str());
    let each = |grown: Option<f64>| Some(grown? / f64::from(count));
    let [cpu, _] = after.more_than(&before, |usage| usage.cpu_time.as_secs_f64() * 1e6);
    let [memory, _] = after.growth_since(&before);
    lab.add_some(target, &case, of::STRANGER_CPU, each(cpu));
    lab.add_some(target, &case, of::STRANGER_MEMORY, each(memory));
    Ok(())
}

/// Returns how many descriptors each program has more than `before`.
fn descriptors(now: &Usages, before: &Usages) -> [Option<f64>; 2] {
    now.more_than(before, |usage| usage.descriptors as f64)
}

/// Waits until all is as before, for a bounded time, and adds what is not.
fn leftovers(lab: &mut Lab, target: &Target, case: &str, before: &Usages) -> Result<()> {
    let more = |count: Option<f64>| count.is_some_and(|count| count > 0.0);
    let calm = lab.settle(|| {
        let [server, agent] = descriptors(&target.usage()?, before);
        let pending = target.server.metric(PENDING)?;
        let left = [server, agent, pending, target.server.metric(ESTABLISHED)?];
        Ok(lab.backend.open() == 0 && !left.into_iter().any(more))
    })?;
    // The last scrape's own connection may still be closing.
    lab.rest(super::POLL);
    let after = target.usage()?;
    let [server, agent] = descriptors(&after, before);
    lab.add(target, case, of::CALM_AFTER, calm.as_secs_f64());
    lab.add(target, case, of::LEAKED, lab.backend.open() as f64);
    let pending = target.server.metric(PENDING)?;
    lab.add_some(target, case, of::PENDING, pending);
    let established = target.server.metric(ESTABLISHED)?;
    lab.add_some(target, case, of::ESTABLISHED, established);
    lab.add_some(target, case, of::SERVER_FDS, server);
    lab.add_some(target, case, of::AGENT_FDS, agent);
    lab.add_growth(target, case, &after, before);
    Ok(())
}

const PENDING: &str = "konnectivity_network_proxy_server_pending_backend_dials";
const ESTABLISHED: &str = "konnectivity_network_proxy_server_established_connections";
const WARM_UP: usize = 50;
const AT_ONCE: usize = 16;
/// Before it is looked whether the pair is still busy.
const FILLING: Duration = Duration::from_millis(1000);
/// Tunnels are dialed before a second agent is there, which answers no dial.
const BEFORE_FLOOD: Duration = Duration::from_millis(500);
const PIECE: usize = 4096;
const PATIENCE: Duration = Duration::from_millis(500);

//! Egress: the seed reaches a kubelet in the shoot by konnectivity; one reader stalls and the others
//! do not notice; the agent ends by itself.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;
use testkit::http::{self, Body, Connection, Target};
use testkit::kubelet::pattern;
use testkit::process::Signal;
use testkit::wait::{self, Stopwatch};

use super::Stage;
use crate::console::Console;
use crate::demo::gateway::{self, Extra};
use crate::demo::konnectivity::{self, Credentials, KUBELET, Konnectivity};

pub(super) fn show(console: &mut Console, stage: &mut Stage) -> Result<()> {
    let heading = "The way back: the control plane reaches a kubelet inside shoot a";
    console.heading(heading);
    start(console, stage)?;
    let pair = stage.konnectivity.as_ref().context("no pair")?;
    // What an API server would ask, asked by the demo itself.
    let way = pair.credentials.by_connect(&stage.shoots[0].kubelets);
    let way = way.timeout(LIMIT);
    console.check("CONNECT over mTLS → kubelet", || answers(stage, &way))?;
    let reader = stall(console, stage, &way)?;
    end_agent(console, stage, &way, reader)
}

fn start(console: &mut Console, stage: &mut Stage) -> Result<()> {
    let host = host(stage);
    let [shoot, other] = &stage.shoots;
    let (dir, seed) = (&stage.dir, &stage.network.seed);
    let kubelet = console.step("a kubelet on the node of shoot a, a stand-in", || {
        let kubelet = konnectivity::start_kubelet(shoot, &stage.network.shoots[0].node)?;
        match seed.run(|| std::net::TcpStream::connect_timeout(&KUBELET, LIMIT))? {
            Ok(_) => bail!("the seed reaches {KUBELET} by itself"),
            Err(error) => Ok((kubelet, format!("from the seed, {KUBELET}: {error}"))),
        }
    })?;
    let (server, credentials) = console.step("konnectivity-server in the seed", || {
        let credentials = Credentials::write(dir, &host)?;
        let registry = konnectivity::write_registry(dir, &credentials, &host)?;
        let server = konnectivity::start_server(stage, &credentials, &registry)?;
        let detail = "for the clusters of a registry; shoot a has no agent yet".to_owned();
        Ok(((server, credentials), detail))
    })?;
    let agent = console.step("konnectivity-agent on the node", || {
        stage.change_routes(&[shoot, other], &[route(stage)])?;
        let agent = konnectivity::start_agent(stage, &credentials, &host)?;
        let detail = format!("connected through {} as {host}", gateway::TLS);
        Ok((agent, detail))
    })?;
    stage.konnectivity = Some(Konnectivity {
        agent,
        server,
        _kubelet: kubelet,
        credentials,
    });
    Ok(())
}

/// Asks the kubelet for something small and something large, and says how that went.
fn answers(stage: &Stage, way: &Target) -> Result<String> {
    let name = "rhizome_konnectivity_tunnels_ended_total";
    let seed = &stage.network.seed;
    let before = konnectivity::metric(seed, name)?;
    is_well(stage, way)?;
    let clock = Stopwatch::start();
    is_well(stage, way)?;
    let took = clock.elapsed();
    let large = ask(stage, way, &format!("/big?bytes={LARGE}"))?;
    ensure!(large == pattern(LARGE), "10 MiB came otherwise");
    let ended = || konnectivity::metric(seed, name).is_ok_and(|now| now >= before + 3.0);
    wait::until("three tunnels to have ended", LIMIT, ended)?;
    let told = format!("ok after {took:.1?}; 10 MiB, every byte; 3 tunnels");
    Ok(told)
}

/// Stops reading in the middle of an answer, and shows that others are served meanwhile.
fn stall(console: &mut Console, stage: &Stage, way: &Target) -> Result<Body> {
    let seed = &stage.network.seed;
    let reader = console.step("a reader stops in the middle of 1 GiB", || {
        let path = format!("/big?bytes={}", 1 << 30);
        let mut reader = seed.run(|| Connection::open(way)?.body(&path))??;
        let read = reader.next(LARGE)?;
        ensure!(read == pattern(LARGE), "the beginning came otherwise");
        wait::until("the server to notice", LIMIT, || {
            konnectivity::metric(seed, "rhizome_konnectivity_stalled_tunnels")
                .is_ok_and(|stalled| stalled == 1.0)
        })?;
        let held = konnectivity::metric(seed, "rhizome_konnectivity_buffered_bytes")?;
        let kib = held / 1024.0;
        let detail = format!("one tunnel is stalled, {kib:.0} KiB held for it");
        Ok((reader, detail))
    })?;
    console.check("others do not notice", || {
        let mut took = Vec::new();
        for _ in 0..REQUESTS {
            let clock = Stopwatch::start();
            is_well(stage, way)?;
            took.push(clock.elapsed());
        }
        took.sort_unstable();
        let longest = took.last().copied().unwrap_or_default();
        let median = took.get(took.len() / 2).copied().unwrap_or_default();
        ensure!(longest < UNHARMED, "one took {longest:.1?}");
        Ok(format!(
            "{REQUESTS} requests through the same pair: median {median:.1?}, longest {longest:.1?}"
        ))
    })?;
    Ok(reader)
}

/// Tells the agent to end while the reader still has its tunnel.
fn end_agent(
    console: &mut Console,
    stage: &mut Stage,
    way: &Target,
    mut reader: Body,
) -> Result<()> {
    console.check("SIGTERM to the agent: it serves on", || {
        pair(stage)?.agent.signal(Signal::TERM)?;
        is_well(stage, way)?;
        let more = reader.next(LARGE)?;
        let good = more == pattern(2 * LARGE)[LARGE..];
        ensure!(good, "the rest came otherwise");
        ensure!(pair(stage)?.agent.exit_status()?.is_none(), "it has ended");
        Ok("a new request, and the reader who goes on".to_owned())
    })?;
    drop(reader);
    console.check("the reader has gone: the agent ends by itself", || {
        let clock = Stopwatch::start();
        let agent = &mut pair(stage)?.agent;
        let status = agent.wait_exit(EXIT_LIMIT)?;
        ensure!(status.success(), "{status}:\n{}", agent.log_tail(10));
        Ok(format!("{:.1?} later, with {status}", clock.elapsed()))
    })?;
    console.check("an agent is started in its place", || {
        let host = host(stage);
        let credentials = &stage.konnectivity.as_ref().context("no pair")?.credentials;
        let agent = konnectivity::start_agent(stage, credentials, &host)?;
        pair(stage)?.agent = agent;
        answers(stage, way)
    })
}

fn ask(stage: &Stage, way: &Target, path: &str) -> Result<Vec<u8>> {
    let answer = stage.network.seed.run(|| http::get(way, path))??;
    let status = answer.status;
    ensure!(status == 200, "{path}: {status}: {}", answer.text());
    Ok(answer.body)
}

fn is_well(stage: &Stage, way: &Target) -> Result<()> {
    ensure!(ask(stage, way, "/healthz")? == b"ok", "it is not well");
    Ok(())
}

fn pair(stage: &mut Stage) -> Result<&mut Konnectivity> {
    stage.konnectivity.as_mut().context("no pair")
}

pub(super) fn route(stage: &Stage) -> Extra {
    let cluster = host(stage);
    Extra {
        rule: json!({ "serverNames": [cluster] }),
        endpoints: vec![konnectivity::AGENTS],
        cluster,
    }
}

/// Returns the name by which agents of shoot a ask for their server.
fn host(stage: &Stage) -> String {
    format!("konnectivity.{}.demo.example.com", stage.shoots[0].letter)
}

const LARGE: usize = 10 << 20;
const REQUESTS: usize = 100;
/// Far above what it takes, and far below what a reader that stands still would make of it.
const UNHARMED: Duration = Duration::from_secs(1);
const LIMIT: Duration = Duration::from_secs(10);
/// Idle for 5 s, and what a slow machine needs.
const EXIT_LIMIT: Duration = Duration::from_secs(20);

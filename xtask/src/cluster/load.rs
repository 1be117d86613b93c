//! Requests to the shoot's API server on every way that there is, while something is done to the clusters.
//!
//! | way | from | to |
//! |---|---|---|
//! | name | outside | the balancer, by the name of the API server |
//! | node | each node of the shoot | 10.1.2.3, the node proxy |
//! | tunnel | outside | by name, and on through the API server to a kubelet |
//! | kept | outside | by name, a connection for many requests |

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use deploy::gardener::{ADVERTISED, API};
use testkit::http::{self, Connection, Target};
use testkit::{netns, wait};

use super::control;
use super::machine::Machine;
use super::network::{BALANCER, SHOOT};
use super::up::Clusters;

/// What came of the requests on one way.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) way: String,
    pub(crate) requests: usize,
    /// When each failed, and why.
    pub(crate) failures: Vec<String>,
    pub(crate) longest: Duration,
    /// When the longest was begun, since the first.
    pub(crate) longest_at: String,
}

/// One way, with a namespace to begin in.
#[derive(Clone, Debug)]
struct Way {
    name: String,
    namespace: PathBuf,
    target: Target,
    path: String,
    kept: bool,
}

/// Runs `work` under load, and returns its result with what came of each way.
pub(crate) fn during<T>(
    clusters: &Clusters,
    work: impl FnOnce() -> Result<T>,
) -> Result<(T, Vec<Outcome>)> {
    let ways = ways(clusters)?;
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let running: Vec<_> = ways
            .iter()
            .map(|way| scope.spawn(|| netns::inside(&way.namespace, || ask(way, &over))))
            .collect();
        // Each has begun.
        wait::pause(Duration::from_millis(500));
        let done = work();
        wait::pause(Duration::from_millis(500));
        over.store(true, Ordering::Relaxed);
        let outcomes = running.into_iter().map(|way| {
            way.join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        let outcomes: Result<Vec<Outcome>> = outcomes.collect();
        Ok((done?, outcomes?))
    })
}

fn ways(clusters: &Clusters) -> Result<Vec<Way>> {
    let shoot = control::shoot(&clusters.root);
    let authority = fs::read_to_string(shoot.directory.join("ca.crt")).context("reading ca.crt")?;
    let token = fs::read_to_string(shoot.directory.join("token")).context("reading a token")?;
    let namespace = |machine: &Machine| {
        let pid = machine
            .init()
            .with_context(|| format!("{} is down", machine.name))?;
        anyhow::Ok(PathBuf::from(format!("/proc/{pid}/ns/net")))
    };
    let by_name: SocketAddr = format!("{BALANCER}:443").parse()?;
    let by_node: SocketAddr = format!("{ADVERTISED}:443").parse()?;
    let target = |address, name: &str| {
        let target = Target::tls(address, &authority).server_name(name);
        target.bearer(token.trim()).timeout(LIMIT)
    };
    let outside = namespace(&clusters.router)?;
    let way = |name: &str, namespace: &PathBuf, target, path: &str| Way {
        name: name.to_owned(),
        namespace: namespace.clone(),
        target,
        path: path.to_owned(),
        kept: false,
    };
    let mut ways = vec![
        way("name", &outside, target(by_name, API), "/version"),
        Way {
            kept: true,
            ..way("kept", &outside, target(by_name, API), "/version")
        },
    ];
    for node in &SHOOT {
        let machine = Machine::at(&clusters.root, node.name);
        let name = format!("node {}", node.name);
        ways.push(way(
            &name,
            &namespace(&machine)?,
            target(by_node, ADVERTISED),
            "/version",
        ));
        let path = format!("/api/v1/nodes/{}/proxy/healthz", node.name);
        let name = format!("tunnel to {}", node.name);
        ways.push(way(&name, &outside, target(by_name, API), &path));
    }
    Ok(ways)
}

fn ask(way: &Way, over: &AtomicBool) -> Outcome {
    let mut outcome = Outcome {
        way: way.name.clone(),
        ..Outcome::default()
    };
    let begun = wait::Stopwatch::start();
    let mut kept: Option<Connection> = None;
    while !over.load(Ordering::Relaxed) {
        let clock = wait::Stopwatch::start();
        let answer = match (&mut kept, way.kept) {
            (Some(connection), _) => connection.get(&way.path),
            (None, true) => Connection::open(&way.target).and_then(|mut connection| {
                let answer = connection.get(&way.path);
                kept = Some(connection);
                answer
            }),
            (None, false) => http::get(&way.target, &way.path),
        };
        outcome.requests += 1;
        if clock.elapsed() > outcome.longest {
            outcome.longest = clock.elapsed();
            outcome.longest_at = format!("{:.1?}", begun.elapsed().saturating_sub(clock.elapsed()));
        }
        let failure = match answer {
            Ok(answer) if answer.status == 200 => None,
            Ok(answer) => Some(format!("{} {}", answer.status, answer.text().trim())),
            Err(error) => Some(format!("{error:#}")),
        };
        if let Some(failure) = failure {
            kept = None;
            let (at, took) = (begun.elapsed(), clock.elapsed());
            outcome
                .failures
                .push(format!("{at:.1?} (after {took:.1?}): {failure}"));
        }
        wait::pause(BETWEEN);
    }
    outcome
}

const BETWEEN: Duration = Duration::from_millis(50);
const LIMIT: Duration = Duration::from_secs(10);

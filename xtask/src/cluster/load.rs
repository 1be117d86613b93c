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

use anyhow::{Context, Result, bail, ensure};
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
    /// The longest time from a failure to the next success.
    pub(crate) outage: Duration,
    pub(crate) longest: Duration,
}

/// One way, with a machine to begin on.
struct Way {
    name: String,
    from: Machine,
    target: Target,
    path: String,
    kept: bool,
    works: AtomicBool,
}

/// Runs `work` under load, waits until every way works again, and returns the result with what came of each.
pub(crate) fn during<T>(
    clusters: &Clusters,
    work: impl FnOnce() -> Result<T>,
) -> Result<(T, Vec<Outcome>)> {
    let ways = ways(clusters)?;
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let over = &over;
        let begin = |way| scope.spawn(move || ask(way, over));
        let running: Vec<_> = ways.iter().map(begin).collect();
        let end = EndOnDrop(over);
        // Each has begun.
        wait::pause(Duration::from_millis(500));
        let done = work()?;
        wait::pause(Duration::from_millis(500));
        let works = |way: &Way| way.works.load(Ordering::Relaxed);
        let all = wait::until("every way", RECOVERY_LIMIT, || ways.iter().all(works));
        drop(end);
        let outcomes = running.into_iter().map(|way| {
            let joined = way.join();
            joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        let outcomes: Vec<Outcome> = outcomes.collect();
        if let Err(error) = all {
            let broken: Vec<&str> = ways
                .iter()
                .filter(|way| !works(way))
                .map(|way| &*way.name)
                .collect();
            bail!("{error:#}; still broken: {}", broken.join(", "));
        }
        Ok((done, outcomes))
    })
}

/// Ends what runs beside, whatever happens.
pub(super) struct EndOnDrop<'a>(pub(super) &'a AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn ways(clusters: &Clusters) -> Result<Vec<Way>> {
    let shoot = control::shoot(&clusters.root);
    let read = |name: &str| {
        let path = shoot.directory.join(name);
        fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
    };
    let (authority, token) = (read("ca.crt")?, read("token")?);
    let by_name: SocketAddr = format!("{BALANCER}:443").parse()?;
    let by_node: SocketAddr = format!("{ADVERTISED}:443").parse()?;
    let way = |name: &str, from: &Machine, path: &str| {
        let outside = from.name == clusters.router.name;
        let (address, host) = if outside {
            (by_name, API)
        } else {
            (by_node, ADVERTISED)
        };
        let target = Target::tls(address, &authority).server_name(host);
        Way {
            name: name.to_owned(),
            from: from.clone(),
            target: target.bearer(token.trim()).timeout(REQUEST_LIMIT),
            path: path.to_owned(),
            kept: name == "kept",
            works: AtomicBool::new(false),
        }
    };
    let outside = &clusters.router;
    let mut ways = vec![
        way("name", outside, "/version"),
        way("kept", outside, "/version"),
    ];
    for node in &SHOOT {
        let machine = Machine::at(&clusters.root, node.name);
        ways.push(way(&format!("node {}", node.name), &machine, "/version"));
        let path = format!("/api/v1/nodes/{}/proxy/healthz", node.name);
        ways.push(way(&format!("tunnel to {}", node.name), outside, &path));
    }
    Ok(ways)
}

/// Asks again and again, from within the machine's network, whichever process is its first.
fn ask(way: &Way, over: &AtomicBool) -> Outcome {
    let mut outcome = Outcome {
        way: way.name.clone(),
        ..Outcome::default()
    };
    let begun = wait::Stopwatch::start();
    let mut failing: Option<wait::Stopwatch> = None;
    let is_over = || over.load(Ordering::Relaxed);
    while !is_over() {
        let init = way.from.init();
        let namespace = init.map(|pid| PathBuf::from(format!("/proc/{pid}/ns/net")));
        let work = || {
            let mut kept = None;
            while !is_over() && way.from.init() == init {
                let clock = wait::Stopwatch::start();
                let failure = request(way, &mut kept).err();
                outcome.requests += 1;
                outcome.longest = outcome.longest.max(clock.elapsed());
                way.works.store(failure.is_none(), Ordering::Relaxed);
                if let Some(failure) = failure {
                    kept = None;
                    failing.get_or_insert(clock);
                    let (at, took) = (begun.elapsed(), clock.elapsed());
                    let text = format!("{at:.1?} (after {took:.1?}): {failure:#}");
                    outcome.failures.push(text);
                } else if let Some(since) = failing.take() {
                    outcome.outage = outcome.outage.max(since.elapsed());
                }
                wait::pause(BETWEEN);
            }
        };
        let entered = namespace.map(|namespace| netns::inside(&namespace, work));
        if !matches!(entered, Some(Ok(()))) {
            way.works.store(false, Ordering::Relaxed);
            failing.get_or_insert_with(wait::Stopwatch::start);
            wait::pause(BETWEEN);
        }
    }
    let open = failing.map_or(Duration::ZERO, wait::Stopwatch::elapsed);
    outcome.outage = outcome.outage.max(open);
    outcome
}

fn request(way: &Way, kept: &mut Option<Connection>) -> Result<()> {
    let answer = match kept {
        Some(connection) => connection.get(&way.path)?,
        None if way.kept => kept.insert(Connection::open(&way.target)?).get(&way.path)?,
        None => http::get(&way.target, &way.path)?,
    };
    ensure!(
        answer.status == 200,
        "{} {}",
        answer.status,
        answer.text().trim()
    );
    Ok(())
}

const BETWEEN: Duration = Duration::from_millis(50);
const REQUEST_LIMIT: Duration = Duration::from_secs(10);
/// For ways that are excused for a while.
const RECOVERY_LIMIT: Duration = Duration::from_secs(120);

//! Requests on every path all the time, and connections that are held open and spoken on.
//!
//! ```text
//!   a thread for each path: connect, ask, compare who answered, close, again ─▶ counts, Failure
//!   Held: a word there and back every 50 ms, on a connection for each path and more
//! ```
//!
//! A request that fails is never asked again: each is counted, and each failure is told with what was
//! being restarted at that moment.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testkit::http::{self, Connection, Target};
use testkit::netns::Namespace;
use testkit::tunnel_world::Held;
use testkit::wait;

use crate::api::LIMIT;

/// A way to a destination.
#[derive(Debug)]
pub(crate) struct Path<'n> {
    pub(crate) name: &'static str,
    pub(crate) from: &'n Namespace,
    pub(crate) target: Target,
    /// What stands before what is asked.
    pub(crate) prefix: &'static str,
    /// Who must answer: no other shoot's.
    pub(crate) answers: &'static str,
}

impl Path<'_> {
    /// Asks once, on a connection of its own.
    fn ask(&self) -> Result<()> {
        let asked = format!("{}/metrics", self.prefix);
        let answer = self.from.run(|| http::get(&self.target, &asked))??;
        let text = answer.text();
        ensure!(answer.status == 200, "{}: {text}", answer.status);
        let wanted = format!("node=\"{}\"", self.answers);
        ensure!(text.contains(&wanted), "not {}: {text}", self.answers);
        Ok(())
    }

    /// Opens a connection on which words come back.
    fn hold(&self) -> Result<Held> {
        let asked = format!("{}/exec", self.prefix);
        let open = || Connection::open(&self.target)?.upgrade(&asked, "words");
        Held::hold(self.from.run(open)??).context("holding a connection")
    }
}

/// A request that failed.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) path: &'static str,
    /// What was being restarted.
    during: String,
    error: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (path, during, error) = (self.path, &self.during, &self.error);
        write!(f, "{path}, while {during} was rolled: {error}")
    }
}

/// All paths, and what became of the requests on them.
pub(crate) struct Traffic<'n> {
    pub(crate) paths: Vec<Path<'n>>,
    asked: Vec<AtomicU64>,
    failed: Mutex<Vec<Failure>>,
    during: Mutex<String>,
    over: AtomicBool,
}

impl<'n> Traffic<'n> {
    pub(crate) fn new(paths: Vec<Path<'n>>) -> Self {
        Self {
            asked: paths.iter().map(|_| AtomicU64::new(0)).collect(),
            paths,
            failed: Mutex::default(),
            during: Mutex::default(),
            over: AtomicBool::new(false),
        }
    }

    /// Asks on one path until the end.
    pub(crate) fn go_on(&self, path: usize) {
        let own = &self.paths[path];
        while !self.is_over() {
            let during = self.during();
            if let Err(error) = own.ask() {
                self.fail(own.name, during, &error);
            }
            self.asked[path].fetch_add(1, Ordering::Relaxed);
            wait::pause(PACE);
        }
    }

    /// Whether it has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Says what is being restarted from now on.
    pub(crate) fn begin(&self, during: &str) {
        *self.during.lock().unwrap_or_else(PoisonError::into_inner) = during.to_owned();
    }

    fn during(&self) -> String {
        let during = self.during.lock().unwrap_or_else(PoisonError::into_inner);
        during.clone()
    }

    fn fail(&self, path: &'static str, during: String, error: &anyhow::Error) {
        let error = format!("{error:#}");
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        failed.push(Failure {
            path,
            during,
            error,
        });
    }

    /// Returns how many requests were asked on each path.
    pub(crate) fn asked(&self) -> Vec<u64> {
        let all = self.asked.iter();
        all.map(|own| own.load(Ordering::Relaxed)).collect()
    }

    /// Waits until each path has been asked some more, in whole.
    pub(crate) fn wait_asked(&self) {
        let before = self.asked();
        let more = || {
            let now = self.asked();
            now.iter().zip(&before).all(|(now, then)| now > &(then + 3))
        };
        wait::until("requests on every path", LIMIT, more).unwrap();
    }

    /// Takes the failures so far.
    pub(crate) fn failures(&self) -> Vec<Failure> {
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut failed)
    }
}

/// Ends the traffic when it is dropped: a test that fails must not wait for its threads.
pub(crate) struct UntilDropped<'t, 'n>(pub(crate) &'t Traffic<'n>);

impl Drop for UntilDropped<'_, '_> {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::Relaxed);
    }
}

/// Connections that are held, by their path.
pub(crate) struct Holding<'t, 'n> {
    traffic: &'t Traffic<'n>,
    all: Vec<(usize, Held)>,
    /// The path on which none is opened, since it might be had by who is about to end.
    pub(crate) without: Option<&'static str>,
}

impl<'t, 'n> Holding<'t, 'n> {
    /// Holds [`HELD`] connections on each path.
    pub(crate) fn new(traffic: &'t Traffic<'n>) -> Self {
        let mut holding = Self {
            traffic,
            all: Vec::new(),
            without: None,
        };
        holding.fill();
        holding
    }

    /// Holds as many again as have ended. One that cannot be had is a request that failed.
    pub(crate) fn fill(&mut self) {
        for (path, own) in self.traffic.paths.iter().enumerate() {
            if self.without == Some(own.name) {
                continue;
            }
            let there = self.all.iter().filter(|(other, _)| *other == path).count();
            for _ in there..HELD {
                match own.hold() {
                    Ok(held) => self.all.push((path, held)),
                    Err(error) => {
                        let during = self.traffic.during();
                        self.traffic.fail(own.name, during, &error);
                    }
                }
            }
        }
    }

    /// Waits until each of them has gone on.
    pub(crate) fn go_on(&self) {
        for (path, held) in &self.all {
            if let Err(error) = held.wait_exchanges(2, LIMIT) {
                let name = self.traffic.paths[*path].name;
                panic!("{name}, during {}: {error:#}", self.traffic.during());
            }
        }
    }

    /// Waits until each on this path has gone on, or is over.
    pub(crate) fn settle(&self, path: &str) {
        let all = self.all.iter();
        let own = all.filter(|(own, _)| self.traffic.paths[*own].name == path);
        for (_, held) in own {
            if let Err(error) = held.wait_exchanges(2, LIMIT) {
                assert!(held.report().failure.is_some(), "{path}: {error:#}");
            }
        }
    }

    /// Ends those on these paths, as clients do that have what they want.
    pub(crate) fn let_go(&mut self, paths: &[&str]) {
        let traffic = self.traffic;
        self.all
            .retain(|(path, _)| !paths.contains(&traffic.paths[*path].name));
    }

    /// Returns how many are over, by the names of their paths.
    pub(crate) fn over(&self) -> BTreeMap<&'static str, usize> {
        let mut over = BTreeMap::new();
        for (path, held) in &self.all {
            if held.report().failure.is_some() {
                *over.entry(self.traffic.paths[*path].name).or_default() += 1;
            }
        }
        over
    }

    /// Forgets those that are over.
    pub(crate) fn forget(&mut self) {
        self.all.retain(|(_, held)| held.report().failure.is_none());
    }
}

/// Connections that are held on each path.
const HELD: usize = 3;

/// Between a request and the next one on a path.
const PACE: Duration = Duration::from_millis(50);

//! How requests of kept connections are spread over servers, after one of them was away.
//!
//! ```text
//! load ─▶ one server ends ─▶ comes back ─▶ 5 s later: what each is asked
//! ```

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::time::sleep;

use super::client::{Client, Protocol};
use super::load::{Load, Running};
use super::server::{SMALL, Server};
use crate::tls::runtime;

#[derive(Debug)]
pub(crate) struct Outcome {
    /// Requests of each server, within the time that counts.
    pub(crate) requests: Vec<u64>,
    /// Requests that failed, at any time.
    pub(crate) failed: u64,
}

impl Outcome {
    /// Returns how far apart the one that is asked most and the one that is asked least are, percent of the
    /// mean.
    pub(crate) fn apart(&self) -> f64 {
        let most = self.requests.iter().max().copied().unwrap_or(0);
        let least = self.requests.iter().min().copied().unwrap_or(0);
        let mean = self.requests.iter().sum::<u64>() as f64 / self.requests.len().max(1) as f64;
        (most - least) as f64 / mean.max(f64::MIN_POSITIVE) * 100.0
    }
}

/// Ends the last of `servers` and starts it again by `start`, while `at_once` connections ask.
pub(crate) fn run(
    client: &Client,
    mut servers: Vec<Server>,
    at_once: usize,
    length: Duration,
    start: impl Fn(SocketAddr) -> Result<Server>,
) -> Result<Outcome> {
    let load = Load {
        protocol: Protocol::Http2,
        path: SMALL,
        at_once,
        fresh: false,
        warm_up: Duration::ZERO,
        length,
    };
    runtime()?.block_on(async {
        let running = Running::start(client, load);
        sleep(BEFORE).await;
        let last = servers.pop().context("no servers")?;
        ensure!(last.requests() > 0, "a server that is not asked");
        let address = last.address();
        drop(last);
        sleep(AWAY).await;
        servers.push(start(address)?);
        sleep(BACK).await;
        let count = || servers.iter().map(Server::requests).collect::<Vec<_>>();
        let before = count();
        sleep(length).await;
        let requests = count().into_iter().zip(before);
        let requests: Vec<u64> = requests.map(|(now, then)| now - then).collect();
        let all_asked = requests.iter().all(|count| *count > 0);
        ensure!(all_asked, "one that is not asked: {requests:?}");
        let failed = running.failed();
        // What the server took with it has failed.
        let _ = running.end().await;
        Ok(Outcome { requests, failed })
    })
}

const BEFORE: Duration = Duration::from_secs(1);
const AWAY: Duration = Duration::from_secs(2);
const BACK: Duration = Duration::from_secs(5);

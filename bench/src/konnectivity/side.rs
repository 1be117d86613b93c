//! One of the two programs, seen from outside: what it uses, and what its metrics say.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result};
use testkit::metrics::Metrics;
use testkit::process::{Usage, usage};

/// A server or an agent. What is not known of a program that was not started here stays unmeasured.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Side {
    pid: Option<u32>,
    health: Option<SocketAddr>,
}

impl Side {
    /// Takes a process id and the address of its metrics.
    pub(crate) fn new(pid: Option<u32>, health: Option<SocketAddr>) -> Self {
        Self { pid, health }
    }

    /// Reads what the process uses; `None` when its id is not known.
    pub(crate) fn usage(self) -> Result<Option<Usage>> {
        self.pid.map(usage).transpose()
    }

    /// Scrapes one metric, summed over its labels; `None` when the address is not known or the
    /// metric not there.
    pub(crate) fn metric(self, name: &str) -> Result<Option<f64>> {
        let Some(health) = self.health else {
            return Ok(None);
        };
        let text = request(health, "/metrics").context("scraping metrics")?;
        let (_, body) = text.split_once("\r\n\r\n").context("scraping metrics")?;
        Ok(Metrics::parse(body)?.value(name, &[]))
    }
}

/// Returns the status that `GET path` is answered with; `None` without an answer.
pub(crate) fn status(addr: SocketAddr, path: &str) -> Option<u16> {
    let text = request(addr, path).ok()?;
    text.split(' ').nth(1)?.parse().ok()
}

fn request(addr: SocketAddr, path: &str) -> Result<String> {
    let mut stream = TcpStream::connect_timeout(&addr, LIMIT)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    // Version 1.0, so that the body comes as it is and ends with the connection.
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {addr}\r\n\r\n")?;
    let mut bytes = Vec::new();
    stream.take(LONGEST).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

const LIMIT: Duration = Duration::from_secs(5);
const LONGEST: u64 = 16 << 20;

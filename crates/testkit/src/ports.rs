//! Ports for programs that cannot be told to pick one.
//!
//! Handed out from below the range from which the kernel takes ports by itself, and each to one
//! asker at a time over all processes of a test run, so that nothing else gets one meanwhile.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::ops::Range;

use anyhow::{Context, Result, bail};

use crate::peers::cache;

/// Below `net.ipv4.ip_local_port_range`, which begins at 32768 by default, and above what
/// services commonly use.
const RANGE: Range<u16> = 20_000..32_000;

/// Returns `count` different TCP ports of `127.0.0.1` that are free, and that no other caller is given
/// before 12,000 others were.
pub fn free(count: usize) -> Result<Vec<u16>> {
    free_at(IpAddr::V4(Ipv4Addr::LOCALHOST), count)
}

/// As [`free`], at another local address.
pub fn free_at(address: IpAddr, count: usize) -> Result<Vec<u16>> {
    let mut turn = Turn::take()?;
    let mut ports = Vec::with_capacity(count);
    for _ in RANGE {
        if ports.len() == count {
            break;
        }
        let port = turn.next();
        if TcpListener::bind(SocketAddr::new(address, port)).is_ok() {
            ports.push(port);
        }
    }
    turn.keep()?;
    if ports.len() < count {
        bail!("no {count} free ports at {address} in {RANGE:?}");
    }
    Ok(ports)
}

/// The port handed out last, in a file that one process at a time may hold.
struct Turn {
    file: File,
    last: u16,
}

impl Turn {
    fn take() -> Result<Self> {
        let path = cache::directory()?.join("last-port");
        let mut file = File::options()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(&path)
            .with_context(|| format!("opening {}", path.display()))?;
        file.lock().context("waiting for the turn")?;
        let mut text = String::new();
        file.read_to_string(&mut text)
            .context("reading the last port")?;
        let last = text.trim().parse().unwrap_or(RANGE.end);
        Ok(Self { file, last })
    }

    fn next(&mut self) -> u16 {
        let next = self.last.saturating_add(1);
        let fits = RANGE.contains(&next);
        self.last = if fits { next } else { RANGE.start };
        self.last
    }

    fn keep(mut self) -> Result<()> {
        self.file.rewind().context("keeping the last port")?;
        self.file.set_len(0).context("keeping the last port")?;
        write!(self.file, "{}", self.last).context("keeping the last port")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_given_once() {
        let askers = [(); 8].map(|()| std::thread::spawn(|| free(4).unwrap()));
        let mut ports: Vec<u16> = askers.into_iter().flat_map(|a| a.join().unwrap()).collect();
        assert!(ports.iter().all(|port| RANGE.contains(port)));
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 32);
    }

    #[test]
    fn a_taken_port_is_passed_over() {
        let [next] = free(1).unwrap()[..] else {
            panic!("one was asked for")
        };
        let taken: Vec<_> = (next + 1..next + 4)
            .filter_map(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok())
            .map(|listener| (listener.local_addr().unwrap().port(), listener))
            .collect();
        let given = free(8).unwrap();
        let passed_over = taken.iter().all(|(port, _)| !given.contains(port));
        assert!(passed_over, "{given:?}");
    }
}

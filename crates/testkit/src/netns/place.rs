//! Where something runs: beside us, or in a namespace.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::Namespace;
use crate::http::{self, Target};
use crate::ports;

#[derive(Clone, Copy, Debug)]
pub enum Place<'a> {
    Here,
    In(&'a Namespace),
}

impl Place<'_> {
    pub fn command(self, program: impl AsRef<Path>) -> Command {
        match self {
            Self::Here => Command::new(program.as_ref()),
            Self::In(namespace) => namespace.command(program),
        }
    }

    pub fn run<T: Send>(self, job: impl FnOnce() -> T + Send) -> Result<T> {
        match self {
            Self::Here => Ok(job()),
            Self::In(namespace) => namespace.run(job),
        }
    }

    pub fn bind(self, addr: SocketAddr) -> Result<TcpListener> {
        self.run(|| TcpListener::bind(addr))?
            .with_context(|| format!("binding {addr}"))
    }

    /// Returns an address of `127.0.0.1` there on which nothing listens.
    pub fn free_address(self) -> Result<SocketAddr> {
        let port = self.run(|| ports::free(1))??.first().copied();
        let port = port.context("a free port")?;
        Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
    }

    /// Tells whether `GET path` is answered with 200 there.
    pub fn is_ok(self, target: &Target, path: &str) -> bool {
        let answer = self.run(|| http::get(target, path));
        matches!(answer, Ok(Ok(answer)) if answer.status == 200)
    }
}

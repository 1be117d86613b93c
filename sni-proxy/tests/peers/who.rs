//! Who a connection is from and to: four words, `SOURCE PORT DESTINATION PORT`.
//!
//! curl says them of its own socket, a server behind a PROXY header of the header; where nothing
//! is lost on the way, both say the same.

use std::net::SocketAddr;
use std::process::Command;

use testkit::command;

use crate::programs::{client, text};

/// What curl said: its own socket's two ends, and the answer's body.
#[derive(Debug)]
pub(crate) struct Said {
    /// `SOURCE PORT DESTINATION PORT` of the socket.
    pub(crate) socket: String,
    pub(crate) body: String,
}

impl Said {
    /// Returns curl's own end.
    pub(crate) fn local(&self) -> SocketAddr {
        let mut words = self.socket.split(' ');
        let ip = words.next().unwrap().parse().unwrap();
        SocketAddr::new(ip, words.next().unwrap().parse().unwrap())
    }
}

/// Prepares curl without the proxies of the environment: it connects only where it is told to.
pub(crate) fn curl() -> Command {
    let mut curl = client("curl");
    curl.args(["--silent", "--show-error", "--fail"]);
    for name in [
        "http_proxy",
        "https_proxy",
        "HTTPS_PROXY",
        "all_proxy",
        "ALL_PROXY",
    ] {
        curl.env_remove(name);
    }
    curl
}

/// Runs curl, which must succeed, and returns what it said.
pub(crate) fn ask(curl: &mut Command) -> Said {
    curl.args([
        "--write-out",
        "%{stderr}%{local_ip} %{local_port} %{remote_ip} %{remote_port}",
    ]);
    let output = command::output(curl).unwrap();
    assert!(
        output.status.success(),
        "`{}`: {}",
        command::line(curl),
        text(&output)
    );
    Said {
        socket: String::from_utf8(output.stderr).unwrap(),
        body: String::from_utf8_lossy(&output.stdout).into_owned(),
    }
}

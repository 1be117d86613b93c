//! The other people's programs: which version, run to its end within a time limit.
//!
//! Shared with test targets of other programs.
#![allow(
    dead_code,
    reason = "test targets share this file and each uses its own part of it"
)]

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use testkit::peers::{envoy, kube};
use testkit::{command, ports};

/// Says which version of `program` the test meets.
///
/// # Panics
/// When it is missing; the text says how it is installed.
pub(crate) fn announce(program: &str) {
    let (path, arguments): (_, &[&str]) = match program {
        "envoy" => (envoy::binary(), &["--version"]),
        "etcd" | "curl" => (command::require(program), &["--version"]),
        "haproxy" | "nginx" => (command::require(program), &["-v"]),
        "kube-apiserver" => (kube::binary(), &["--version"]),
        "kubectl" => (command::require(program), &["version", "--client"]),
        "openssl" => (command::require(program), &["version"]),
        other => panic!("no way known to ask {other} for its version"),
    };
    let path = path.unwrap_or_else(|error| panic!("{error:#}"));
    let said = command::output(Command::new(&path).args(arguments)).unwrap();
    let text = [said.stdout, said.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    let version = text.lines().find(|line| !line.trim().is_empty());
    eprintln!("peer {program}: {}", version.unwrap_or_default().trim());
}

/// Prepares a client program that is ended after 60 s at the latest.
pub(crate) fn client(program: &str) -> Command {
    let mut command = Command::new("timeout");
    command
        .arg("60")
        .arg(command::require(program).unwrap_or_else(|error| panic!("{error:#}")));
    command
}

/// Runs a client with `input`, then end of file, on its standard input.
pub(crate) fn run_with_input(command: &mut Command, input: &str) -> Output {
    command.stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A client that was refused may have gone before it has read all.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

/// Returns both outputs as one text.
pub(crate) fn text(output: &Output) -> String {
    let bytes = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns the SHA-256 of a file, as `sha256sum` computes it.
pub(crate) fn sha256(path: &Path) -> String {
    let said = command::run(Command::new("sha256sum").arg(path)).unwrap();
    said.split_whitespace().next().unwrap().to_owned()
}

/// Returns a free port at `address`.
pub(crate) fn free(address: &str) -> SocketAddr {
    let ip: IpAddr = address.parse().unwrap();
    SocketAddr::new(ip, ports::free_at(ip, 1).unwrap()[0])
}

//! TCP streams through a tunnel, by iperf3.
//!
//! ```text
//!   iperf3 -c in the server's namespace ──▶ tunnel ──▶ iperf3 -s in the client's namespace
//! ```

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;
use testkit::command;
use testkit::netns::Namespace;
use testkit::process::ChildGuard;

use super::network::{CLIENT, Network};
use super::running::Inner;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Bulk<'a> {
    pub(crate) streams: u32,
    pub(crate) length: Duration,
    /// Sent before that, and not counted.
    pub(crate) lead: Duration,
    pub(crate) reverse: bool,
    pub(crate) congestion: &'a str,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Moved {
    pub(crate) bytes: f64,
    /// Bits a second, as the receiver saw them.
    pub(crate) rate: f64,
    /// Segments that the senders sent again, where that is known.
    pub(crate) retransmits: Option<f64>,
}

pub(crate) fn run(network: &Network, inner: Inner, dir: &Path, bulk: Bulk<'_>) -> Result<Moved> {
    between([&network.server, &network.client], inner, PORT, dir, bulk)
}

/// Moves bytes from the second server through its tunnel.
pub(crate) fn run_second(
    network: &Network,
    inner: Inner,
    dir: &Path,
    bulk: Bulk<'_>,
) -> Result<Moved> {
    let ends = [&network.second, &network.client];
    between(ends, inner, PORT + 1, dir, bulk)
}

/// Moves bytes from the gateway to the client without a tunnel.
pub(crate) fn run_beside(network: &Network, dir: &Path, bulk: Bulk<'_>) -> Result<Moved> {
    let ends = [&network.gateway, &network.client];
    between(ends, Inner::routed(CLIENT), PORT + 1, dir, bulk)
}

fn between(
    [from, to]: [&Namespace; 2],
    inner: Inner,
    port: u16,
    dir: &Path,
    bulk: Bulk<'_>,
) -> Result<Moved> {
    let iperf = command::require("iperf3")?;
    let (address, port) = (inner.address.to_string(), port.to_string());
    let mut command = to.command(&iperf);
    command.args(["-s", "-1", "-B", &address, "-p", &port]);
    let log = dir.join(format!("iperf3-server-{port}.log"));
    let mut sink = ChildGuard::spawn("iperf3 -s", &command, &log)?;
    sink.wait_listening(format!("{address}:{port}").parse()?, START_LIMIT)?;
    let mut command = from.command(&iperf);
    command.args(["-c", &address, "-p", &port, "-J"]);
    if let Some(device) = inner.device {
        command.args(["--bind-dev", device]);
    }
    command.args(["-C", bulk.congestion]);
    command.args(["-P", &bulk.streams.to_string()]);
    command.args(["-t", &bulk.length.as_secs().to_string()]);
    command.args(["-O", &bulk.lead.as_secs().to_string()]);
    command.args(bulk.reverse.then_some("-R"));
    let log = dir.join(format!("iperf3-{port}.json"));
    // Appended to, and a run before has left its own.
    let _ = std::fs::remove_file(&log);
    let mut source = ChildGuard::spawn("iperf3 -c", &command, &log)?;
    source.wait_exit(bulk.lead + bulk.length + END_LIMIT)?;
    moved(&source.log())
}

fn moved(text: &str) -> Result<Moved> {
    let json: Value =
        serde_json::from_str(text).with_context(|| format!("reading what iperf3 says: {text}"))?;
    let of = |path: &str| {
        let value = json.pointer(path).and_then(Value::as_f64);
        value.with_context(|| format!("iperf3 does not say {path}: {}", json["error"]))
    };
    Ok(Moved {
        bytes: of("/end/sum_received/bytes")?,
        rate: of("/end/sum_received/bits_per_second")?,
        retransmits: Some(of("/end/sum_sent/retransmits")?),
    })
}

const PORT: u16 = 5201;
const START_LIMIT: Duration = Duration::from_secs(10);

/// Connecting and ending, over a line that loses packets.
const END_LIMIT: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn received_bytes_count_and_errors_show() {
        let text = r#"{ "end": { "sum_sent": { "bytes": 9, "retransmits": 4 },
            "sum_received": { "bytes": 8, "bits_per_second": 64.5 } } }"#;
        let expected = Moved {
            bytes: 8.0,
            rate: 64.5,
            retransmits: Some(4.0),
        };
        assert_eq!(moved(text).unwrap(), expected);
        let error = moved(r#"{ "error": "unable to connect" }"#).unwrap_err();
        assert!(error.to_string().contains("unable to connect"), "{error}");
    }
}

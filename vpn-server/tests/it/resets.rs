//! A reset of one side of the proxy reaches the other as a reset, behind what was sent before it.

use std::io::{ErrorKind, Read, Write};

use serde_json::json;
use testkit::konnectivity::Tunnel;
use testkit::upstream::{Behavior, Upstream};
use testkit::wait;

use crate::support::{LIMIT, Rig};

const BULK: usize = 4 << 20;

fn tunnel(rig: &Rig, upstream: &Upstream) -> Tunnel {
    let target = upstream.addr().to_string();
    rig.api_server().connect(&target).unwrap().unwrap()
}

/// Reads to the end, whatever it is.
fn read_out(tunnel: &mut Tunnel) -> (usize, Result<(), ErrorKind>) {
    let mut all = Vec::new();
    let end = tunnel.reader.read_to_end(&mut all);
    (all.len(), end.map(drop).map_err(|error| error.kind()))
}

#[test]
fn destination_reset_reaches_api_server() {
    let rig = Rig::start(&json!({}));
    for (count, bytes) in [(1, 1), (2, BULK)] {
        let after = bytes as u64;
        let resets = Upstream::start(Behavior::Resets { after }).unwrap();
        let mut tunnel = tunnel(&rig, &resets);
        tunnel.writer.write_all(&vec![7; bytes]).unwrap();
        let reset = (0, Err(ErrorKind::ConnectionReset));
        assert_eq!(read_out(&mut tunnel), reset, "{bytes} bytes");
        rig.wait_closed("upstream_reset", count);
    }
}

#[test]
fn answer_arrives_before_reset() {
    const BYTES: u32 = 1 << 20;
    let rig = Rig::start(&json!({}));
    let bytes = u64::from(BYTES);
    let upstream = Upstream::start(Behavior::ResetsOnRequest { bytes }).unwrap();
    let mut tunnel = tunnel(&rig, &upstream);
    let labels = [("direction", "tx")];
    rig.wait_value("rhizome_relay_bytes_total", &labels, f64::from(BYTES));
    // The API server has read next to nothing.
    upstream.reset();
    let whole = (BYTES as usize, Err(ErrorKind::ConnectionReset));
    assert_eq!(read_out(&mut tunnel), whole);
    rig.wait_closed("upstream_reset", 1);
}

#[test]
fn api_server_reset_reaches_destination() {
    let rig = Rig::start(&json!({}));
    for (count, bytes) in [(1, 1), (2, BULK)] {
        let sink = Upstream::start(Behavior::Sink).unwrap();
        let mut tunnel = tunnel(&rig, &sink);
        tunnel.writer.write_all(&vec![7; bytes]).unwrap();
        let all = || sink.received() == bytes as u64;
        wait::until("the bytes to arrive", LIMIT, all).unwrap();
        tunnel.reset();
        rig.wait_closed("downstream_reset", count);
        sink.wait_resets(1, LIMIT).unwrap();
    }
}

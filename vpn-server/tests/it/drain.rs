//! Stopping without losing what is under way.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::TcpStream;

use serde_json::json;
use serve::Phase;
use testkit::upstream::{Behavior, Upstream};
use testkit::wait;

use crate::support::{Call, LIMIT, Rig};

#[test]
fn drain_notifies_clients_and_awaits_connections() {
    let mut rig = Rig::start(&json!({ "drain": { "timeout": "60s" } }));
    let echo = Upstream::start(Behavior::Echo).unwrap();
    let target = echo.addr().to_string();
    let mut tunnel = rig.api_server().connect(&target).unwrap().unwrap();
    tunnel.echo(b"before").unwrap();
    assert_eq!(rig.ready(), 200);
    let drained = Rig::ask(rig.admin, "POST", "/drain");
    assert_eq!(drained.status, 200);
    assert!(matches!(rig.call(), Call::Drain));
    assert_eq!(rig.ready(), 503);
    wait::until("the proxy to be closed", LIMIT, || {
        TcpStream::connect(rig.proxy).is_err()
    })
    .unwrap();
    assert_eq!(tunnel.echo(b"after").unwrap(), b"after");
    // Clients may have to come back for what is still open.
    assert!(TcpStream::connect(rig.tunnel).is_ok());
    drop(tunnel);
    assert!(rig.end());
    assert!(matches!(rig.call(), Call::Stop));
}

/// Returns the names of the worker threads that run.
fn workers() -> BTreeSet<String> {
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    // A thread may end meanwhile.
    let names = threads
        .filter_map(|thread| std::fs::read_to_string(thread.unwrap().path().join("comm")).ok());
    names.filter(|name| name.starts_with("worker-")).collect()
}

#[test]
fn tunnel_port_stays_open_when_other_workers_have_ended() {
    // The kernel chooses the worker of a connection.
    let mut left = BTreeSet::new();
    while left.len() < 2 {
        let mut rig = Rig::start(&json!({ "workers": 2, "drain": { "timeout": "60s" } }));
        let echo = Upstream::start(Behavior::Echo).unwrap();
        let target = echo.addr().to_string();
        let mut tunnel = rig.api_server().connect(&target).unwrap().unwrap();
        tunnel.echo(b"before").unwrap();
        assert_eq!(workers().len(), 2);
        assert_eq!(Rig::ask(rig.admin, "POST", "/drain").status, 200);
        wait::until("the other worker to end", LIMIT, || workers().len() == 1).unwrap();
        assert!(TcpStream::connect(rig.tunnel).is_ok(), "{:?}", workers());
        left.append(&mut workers());
        drop(tunnel);
        assert!(rig.end());
    }
}

#[test]
fn drain_timeout_cuts_connections() {
    let mut rig = Rig::start(&json!({ "drain": { "timeout": "100ms" } }));
    let echo = Upstream::start(Behavior::Echo).unwrap();
    let target = echo.addr().to_string();
    let mut tunnel = rig.api_server().connect(&target).unwrap().unwrap();
    tunnel.echo(b"x").unwrap();
    assert_eq!(Rig::ask(rig.admin, "POST", "/drain").status, 200);
    // Without TLS's closing alert: something is missing.
    let end = tunnel.reader.rest().map_err(|error| error.kind());
    assert_eq!(end, Err(ErrorKind::UnexpectedEof));
    assert!(rig.end());
    assert_eq!(rig.drain.phase(), Phase::Cut);
}

#[test]
fn server_ends_when_tunnels_end() {
    let mut rig = Rig::start(&json!({}));
    drop(rig.status.take());
    assert!(!rig.end());
}

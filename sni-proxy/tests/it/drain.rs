//! Taking leave: unready at once, accepting for a while, refusing then, cutting at last.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use testkit::client_hello::ClientHello;
use testkit::process::Signal;
use testkit::upstream::{Behavior, Upstream};
use testkit::wait::{self, Stopwatch};

use crate::support::{Child, Client, End, Gateway, LIMIT, Probe, routes_of};

fn start(workers: u32, drain: &str) -> (Child, Upstream) {
    let upstream = Upstream::start(Behavior::Echo).unwrap();
    let config = format!(
        r#"
workers: {workers}
listeners:
- {{ name: tls, address: "127.0.0.1:0", protocol: tls }}
- {{ name: vpn, address: "127.0.0.1:0", protocol: connect }}
drain: {{ {drain} }}
accessLog: {{ format: json }}
"#
    );
    (
        Child::start(&config, &routes_of(&[("a", upstream.addr())])),
        upstream,
    )
}

/// What became of the attempts of one client that never stops connecting.
#[derive(Debug, Default)]
struct Attempts {
    served: AtomicU64,
    served_while_draining: AtomicU64,
    refused: AtomicU64,
}

/// Connects, is served and leaves, again and again until it has been refused often.
fn hammer(addr: SocketAddr, draining: &AtomicBool, attempts: &Attempts) {
    let hello = ClientHello::for_name("a.test").encode();
    let from = "127.0.0.1".parse().unwrap();
    let mut refusals = 0;
    while refusals < 20 {
        let was_draining = draining.load(Ordering::Relaxed);
        let mut client = match Client::try_from_ip(from, addr) {
            Ok(client) => client,
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                assert!(was_draining, "refused while serving");
                refusals += 1;
                attempts.refused.fetch_add(1, Ordering::Relaxed);
                wait::pause(Duration::from_millis(5));
                continue;
            }
            Err(error) => panic!("neither connected nor refused: {error}"),
        };
        assert_eq!(refusals, 0, "refused first and accepted afterwards");
        // An accepted connection is served to the end; a reset anywhere here fails the test.
        client.expect_echo(&hello);
        client.expect_echo(b"and more");
        client.finish();
        assert_eq!(client.rest(), b"");
        attempts.served.fetch_add(1, Ordering::Relaxed);
        if was_draining {
            attempts
                .served_while_draining
                .fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[test]
fn connecting_client_is_never_reset_by_drain() {
    let (mut child, upstream) = start(4, "delay: 1s, timeout: 10s");
    let (draining, attempts) = (AtomicBool::new(false), Attempts::default());
    let addr = child.addr("tls");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| hammer(addr, &draining, &attempts));
        }
        let served = || attempts.served.load(Ordering::Relaxed);
        wait::until("300 connections", LIMIT, || served() >= 300).unwrap();
        draining.store(true, Ordering::Relaxed);
        child.signal(Signal::TERM);
    });
    assert_eq!(child.wait_exit().code(), Some(0));
    println!("{attempts:?}");
    assert!(
        attempts.served_while_draining.into_inner() > 20,
        "accepts until the delay is over"
    );
    let served = attempts.served.into_inner();
    assert_eq!(upstream.accepted() as u64, served);
    let lines = child.stdout();
    let closed = lines
        .lines()
        .filter(|line| line.contains("\"reason\":\"closed\""))
        .count();
    assert_eq!(
        closed as u64, served,
        "each of them in the log, all of them whole"
    );
}

/// Connects as fast as it can until it is refused; returns what got in and has said nothing yet.
fn flood(addr: SocketAddr) -> Vec<Client> {
    let from = "127.0.0.1".parse().unwrap();
    let mut open = Vec::new();
    loop {
        match Client::try_from_ip(from, addr) {
            Ok(client) => open.push(client),
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => return open,
            Err(error) => panic!("neither connected nor refused: {error}"),
        }
    }
}

#[test]
fn connections_in_the_queue_are_served() {
    let echo = Upstream::start(Behavior::Echo).unwrap();
    let config = r#"
workers: 4
listeners:
- { name: tls, address: "127.0.0.1:0", protocol: tls }
drain: { delay: 300ms, timeout: 20s }
"#;
    let hello = ClientHello::for_name("a.test").encode();
    let mut got_in = 0;
    for _ in 0..4 {
        let gateway = Gateway::start(config, &routes_of(&[("a", echo.addr())]));
        let addr = gateway.addr("tls");
        assert_eq!(Probe::ask(gateway.admin, "POST", "/drain").status, 200);
        wait::pause(Duration::from_millis(280)); // so that the flood is at its height
        let open: Vec<Vec<Client>> = std::thread::scope(|scope| {
            let floods: Vec<_> = (0..3).map(|_| scope.spawn(|| flood(addr))).collect();
            floods
                .into_iter()
                .map(|flood| flood.join().unwrap())
                .collect()
        });
        for mut client in open.into_iter().flatten() {
            client.expect_echo(&hello); // which a reset connection cannot
            got_in += 1;
        }
    }
    println!("{got_in} got in");
    assert!(got_in > 100);
}

#[test]
fn drain_is_unready_and_accepts_for_delay() {
    let (mut child, _upstream) = start(2, "delay: 4s, timeout: 10s");
    assert_eq!(child.readiness(), 200);
    let mut old = Client::established(child.addr("tls"), "a.test");
    let clock = Stopwatch::start();
    child.signal(Signal::TERM);
    wait::until("unready", Duration::from_secs(2), || {
        child.readiness() == 503
    })
    .unwrap();
    let mut late = Client::established(child.addr("tls"), "a.test");
    late.finish();
    late.rest();
    let refused = wait::until("connections to be refused", LIMIT, || {
        let attempt = Client::try_from_ip("127.0.0.1".parse().unwrap(), child.addr("tls"));
        attempt.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
    });
    refused.unwrap();
    assert!(
        clock.elapsed() >= Duration::from_millis(3900),
        "{:?}",
        clock.elapsed()
    );
    assert_eq!(Probe::ask(child.probes, "GET", "/healthz").status, 200);
    old.expect_echo(b"connections finish in their own time");
    old.finish();
    old.end();
    assert_eq!(child.wait_exit().code(), Some(0));
}

#[test]
fn drain_cuts_connections_after_timeout() {
    let (mut child, upstream) = start(2, "delay: 0s, timeout: 2s");
    let mut held = Client::established(child.addr("tls"), "a.test");
    let peer = held.addr();
    let clock = Stopwatch::start();
    child.signal(Signal::TERM);
    assert_eq!(held.end(), End::Closed);
    let taken = clock.elapsed();
    assert!(
        taken >= Duration::from_millis(1900) && taken < Duration::from_secs(8),
        "{taken:?}"
    );
    assert_eq!(child.wait_exit().code(), Some(0));
    assert_eq!(child.access_line(peer)["reason"], "drained");
    upstream.wait_closed(LIMIT).unwrap();
}

#[test]
fn the_second_signal_cuts_now() {
    let (mut child, _upstream) = start(2, "delay: 60s, timeout: 60s");
    let mut held = Client::established(child.addr("tls"), "a.test");
    let silent = Client::open(child.addr("vpn"));
    child.wait_value("rhizome_listener_connections_active", &[], 2.0);
    let clock = Stopwatch::start();
    child.signal(Signal::TERM);
    wait::until("unready", LIMIT, || child.readiness() == 503).unwrap();
    held.expect_echo(b"not cut by the first");
    child.signal(Signal::TERM);
    held.end();
    assert_eq!(child.wait_exit().code(), Some(0));
    assert!(
        clock.elapsed() < Duration::from_secs(10),
        "{:?}",
        clock.elapsed()
    );
    assert_eq!(child.access_line(held.addr())["reason"], "drained");
    assert_eq!(child.access_line(silent.addr())["reason"], "drained");
}

/// Connects, is served and stays, again and again until connecting fails; returns who stayed.
fn crowd(addr: SocketAddr, served: &AtomicU64) -> VecDeque<Client> {
    let hello = ClientHello::for_name("a.test").encode();
    let mut open = VecDeque::new();
    while let Ok(mut client) = Client::try_from_ip("127.0.0.1".parse().unwrap(), addr) {
        if client.try_send(&hello).is_ok() && client.stream().peek(&mut [0]).is_ok() {
            served.fetch_add(1, Ordering::Relaxed);
        }
        open.push_back(client);
        if open.len() > 50 {
            open.pop_front().unwrap().reset();
        }
    }
    open
}

#[test]
fn second_signal_ends_despite_new_clients() {
    let (mut child, _upstream) = start(2, "delay: 60s, timeout: 0s");
    let (addr, served) = (child.addr("tls"), AtomicU64::new(0));
    let taken = std::thread::scope(|scope| {
        // Each crowd keeps its last connections open until the process has ended.
        let _crowds: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| crowd(addr, &served)))
            .collect();
        let served = || served.load(Ordering::Relaxed);
        wait::until("a crowd", LIMIT, || served() >= 300).unwrap();
        child.signal(Signal::TERM);
        wait::until("unready", LIMIT, || child.readiness() == 503).unwrap();
        let so_far = served();
        wait::until("more to be served", LIMIT, || served() > so_far + 100).unwrap();
        let clock = Stopwatch::start();
        child.signal(Signal::TERM);
        let status = child.guard.wait_exit(LIMIT);
        // The crowd stops once the port has no listener.
        let _ = child.guard.kill();
        assert_eq!(status.unwrap().code(), Some(0));
        clock.elapsed()
    });
    assert!(taken < Duration::from_secs(5), "{taken:?}");
}

#[test]
fn drain_request_drains_without_exit() {
    let (mut child, _upstream) = start(2, "delay: 500ms, timeout: 1s");
    let mut held = Client::established(child.addr("tls"), "a.test");
    assert_eq!(Probe::ask(child.admin, "GET", "/drain").status, 405);
    assert_eq!(child.readiness(), 200);
    assert_eq!(Probe::ask(child.admin, "POST", "/drain").status, 200);
    assert_eq!(child.readiness(), 503);
    held.end();
    child.wait_closed("tls", "drained", 1);
    let refused = Client::try_from_ip("127.0.0.1".parse().unwrap(), child.addr("tls"));
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::ConnectionRefused);
    // Nothing is left to do, and it stays to be asked.
    assert_eq!(child.connections().len(), 0);
    assert_eq!(child.readiness(), 503);
    assert!(child.guard.exit_status().unwrap().is_none());
    child.signal(Signal::TERM);
    assert_eq!(child.wait_exit().code(), Some(0));
}

#[test]
fn an_idle_process_ends_as_soon_as_it_may() {
    let (mut child, _upstream) = start(2, "delay: 0s, timeout: 60s");
    let clock = Stopwatch::start();
    child.signal(Signal::INT);
    assert_eq!(child.wait_exit().code(), Some(0));
    assert!(
        clock.elapsed() < Duration::from_secs(10),
        "{:?}",
        clock.elapsed()
    );
}

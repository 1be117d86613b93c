//! The way out: unready at once, accepting for a while, refusing, cutting.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::json;
use testkit::process::Signal;
use testkit::upstream::{Behavior, Upstream};
use testkit::wait::{self, Stopwatch};

use crate::proxy::{LIMIT, Program, Running, by_proxy_header, config, connect, finish};

fn draining(delay: &str, timeout: &str) -> serde_json::Value {
    json!({ "drain": { "delay": delay, "timeout": timeout } })
}

#[test]
fn drain_accepts_for_delay_then_cuts_at_timeout() {
    let gateway = Upstream::start(Behavior::Echo).unwrap();
    let upstream = by_proxy_header(gateway.addr());
    let proxy = Running::start(&config(upstream, draining("2s", "3s")));
    let mut old = proxy.connect();
    gateway.wait_accepted(1, LIMIT).unwrap();

    let watch = Stopwatch::start();
    proxy.drain();
    for path in ["/readyz", "/ready"] {
        assert_eq!(proxy.probe(path).status, 503, "{path}");
    }
    assert_eq!(proxy.probe("/healthz").status, 200);
    let mut late = proxy.connect();
    late.write_all(b"late").unwrap();
    assert!(finish(late).ends_with(b"late"));
    assert!(watch.elapsed() < Duration::from_secs(2), "tested in time");

    let addr = proxy.addr();
    let refused = || {
        TcpStream::connect(addr).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
    };
    wait::until("new connections to be refused", LIMIT, refused).unwrap();
    assert!(watch.elapsed() > Duration::from_millis(1990));
    old.write_all(b"still served").unwrap();
    let mut heard = Vec::new();
    let _ = old.read_to_end(&mut heard);
    assert!(heard.ends_with(b"still served"));
    let took = watch.elapsed();
    let expected = Duration::from_millis(4950)..Duration::from_secs(9);
    assert!(expected.contains(&took), "cut after {took:?}");
    proxy.wait_ended();
}

#[test]
fn stopped_process_exits_with_last_connection() {
    let gateway = Upstream::start(Behavior::Echo).unwrap();
    let upstream = by_proxy_header(gateway.addr());
    let mut program = Program::start(&config(upstream, draining("0s", "60s")));
    let mut client = connect(program.addr);
    gateway.wait_accepted(1, LIMIT).unwrap();
    program.child.signal(Signal::TERM).unwrap();
    let unready = || {
        let target = testkit::http::Target::plain(program.probes);
        testkit::http::get(&target, "/ready").is_ok_and(|answer| answer.status == 503)
    };
    wait::until("the probe to fail", LIMIT, unready).unwrap();
    client.write_all(b"not yet").unwrap();
    assert!(finish(client).ends_with(b"not yet"));
    let status = program.child.wait_exit(LIMIT).unwrap();
    assert_eq!(status.code(), Some(0));
}

#[test]
fn a_second_signal_cuts() {
    let gateway = Upstream::start(Behavior::Echo).unwrap();
    let upstream = by_proxy_header(gateway.addr());
    let mut program = Program::start(&config(upstream, draining("60s", "60s")));
    let mut client = connect(program.addr);
    gateway.wait_accepted(1, LIMIT).unwrap();
    let watch = Stopwatch::start();
    program.child.signal(Signal::TERM).unwrap();
    let unready = || {
        let target = testkit::http::Target::plain(program.probes);
        testkit::http::get(&target, "/ready").is_ok_and(|answer| answer.status == 503)
    };
    wait::until("the first signal to be acted on", LIMIT, unready).unwrap();
    program.child.signal(Signal::TERM).unwrap();
    let _ = client.read_to_end(&mut Vec::new());
    let status = program.child.wait_exit(LIMIT).unwrap();
    assert_eq!(status.code(), Some(0));
    println!("gone {:?} after the first signal", watch.elapsed());
    assert!(watch.elapsed() < Duration::from_secs(5));
}

#[test]
fn clients_during_drain_see_no_reset() {
    let gateway = Upstream::start(Behavior::Echo).unwrap();
    let more = json!({ "workers": 2, "drain": { "delay": "300ms", "timeout": "10s" } });
    let proxy = Running::start(&config(by_proxy_header(gateway.addr()), more));
    let mut served = 0;
    let mut refusals = 0;
    let watch = Stopwatch::start();
    let mut told = false;
    while refusals < 20 {
        if !told && served >= 20 {
            proxy.drain();
            told = true;
        }
        match TcpStream::connect(proxy.addr()) {
            Ok(mut client) => {
                client.set_read_timeout(Some(LIMIT)).unwrap();
                client.write_all(b"hello").unwrap();
                assert!(finish(client).ends_with(b"hello"));
                assert_eq!(refusals, 0, "served after a refusal");
                served += 1;
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{error}");
                refusals += 1;
            }
        }
        assert!(watch.elapsed() < LIMIT);
    }
    println!("{served} served, then refused after {:?}", watch.elapsed());
    proxy.wait_ended();
}

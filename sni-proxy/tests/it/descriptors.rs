//! When file descriptors run out, and when they come back.

use std::time::Duration;

use serde_json::Value;
use testkit::client_hello::ClientHello;
use testkit::upstream::{Behavior, Upstream};
use testkit::wait::{self, Stopwatch};

use crate::support::{Child, Client, LIMIT, routes_of};

const LISTENER: &str = r#"
workers: 2
listeners:
- { name: tls, address: "127.0.0.1:0", protocol: tls }
"#;

#[test]
fn accept_resumes_after_descriptor_shortage() {
    let upstream = Upstream::start(Behavior::Echo).unwrap();
    let routes = routes_of(&[("a", upstream.addr())]);
    let child = Child::start(LISTENER, &routes);
    let addr = child.addr("tls");
    let mut established = Client::established(addr, "a.test");
    let limit = child.leave_descriptors(5);
    let waiting: Vec<Client> = (0..40).map(|_| Client::open(addr)).collect();
    // Probes find no descriptor either, so the counter is read once there are some again.
    let used = || child.guard.usage().unwrap().descriptors;
    let in_use = wait::until("all descriptors to be in use", LIMIT, || used() >= limit);
    assert!(in_use.is_ok(), "{} of {limit}", used());
    established.expect_echo(b"established connections go on");
    wait::pause(Duration::from_millis(50));
    established.expect_echo(b"and on");
    drop(waiting);
    child.wait_value("rhizome_listener_connections_active", &[], 1.0);
    assert!(child.value("rhizome_accept_paused_total", &[]) > 0.0);
    for _ in 0..5 {
        Client::established(addr, "a.test");
    }
    established.expect_echo(b"to the end");
    assert_eq!(child.readiness(), 200);
}

#[test]
fn routes_are_read_after_descriptor_shortage() {
    let upstream = Upstream::start(Behavior::Echo).unwrap();
    let routes = routes_of(&[("a", upstream.addr())]);
    let config = format!("{LISTENER}limits: {{ preambleTimeout: 60s }}\n");
    let child = Child::start(&config, &routes);
    let addr = child.addr("tls");
    let limit = child.leave_descriptors(5);
    let waiting: Vec<Client> = (0..40).map(|_| Client::open(addr)).collect();
    let used = || child.guard.usage().unwrap().descriptors;
    wait::until("all descriptors to be in use", LIMIT, || used() >= limit).unwrap();
    let routes = routes_of(&[("b", upstream.addr())]);
    child.dir.replace("routes.yaml", routes).unwrap();
    // Nothing but the log can be asked now.
    let tried = || child.events().iter().any(is_refusal);
    wait::until("the file to be tried", LIMIT, tried).unwrap();
    drop(waiting);
    let clock = Stopwatch::start();
    child.wait_generation(2);
    // Tried again each second; the file is looked at unasked each half minute only.
    assert!(
        clock.elapsed() < Duration::from_secs(10),
        "{:?}",
        clock.elapsed()
    );
    Client::established(addr, "b.test");
    assert_eq!(child.value("rhizome_snapshot_refused_total", &[]), 1.0);
}

fn is_refusal(event: &Value) -> bool {
    event["error"].is_string() && event["generation"] == 1
}

#[test]
fn all_of_them_are_back_after_load() {
    let echo = Upstream::start(Behavior::Echo).unwrap();
    let refusing = testkit::ports::free(1).unwrap()[0];
    let gone = ([127, 0, 0, 1], refusing).into();
    let child = Child::start(LISTENER, &routes_of(&[("a", echo.addr()), ("b", gone)]));
    let addr = child.addr("tls");
    let used = || child.guard.usage().unwrap().descriptors;
    child.readiness();
    let before = used();
    std::thread::scope(|scope| {
        for worker in 0..4 {
            scope.spawn(move || {
                for round in 0..60 {
                    load(addr, worker + round);
                }
            });
        }
    });
    child.wait_idle();
    // Pipes of a burst are given back in two rounds of ten seconds.
    let back = wait::until(
        "descriptors to be given back",
        Duration::from_secs(45),
        || used() <= before,
    );
    assert!(back.is_ok(), "{} before, {} after", before, used());
}

/// Connections that end in every way, large transfers among them.
fn load(addr: std::net::SocketAddr, kind: u32) {
    match kind % 6 {
        0 => {
            let mut client = Client::established(addr, "a.test");
            let big = vec![9; 200_000];
            let sending = client.stream().try_clone().unwrap();
            let bytes = big.clone();
            let writer = std::thread::spawn(move || {
                std::io::Write::write_all(&mut &sending, &bytes).unwrap();
            });
            assert_eq!(client.receive(big.len()), big);
            writer.join().unwrap();
        }
        1 => Client::established(addr, "a.test").reset(),
        2 => {
            Client::hello(addr, "b.test").end();
        }
        3 => {
            let mut client = Client::open(addr);
            client.send(b"not TLS");
            client.end();
        }
        4 => drop(Client::open(addr)),
        _ => {
            let hello = ClientHello::for_name("a.test").encode();
            let mut half = Client::open(addr);
            half.send(&hello[..40]);
        }
    }
}

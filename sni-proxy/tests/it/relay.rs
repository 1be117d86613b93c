//! Bytes through the gateway: half-close, ends, resets, limits in time.

use std::time::Duration;

use testkit::client_hello::ClientHello;
use testkit::upstream::{Behavior, Upstream};
use testkit::wait::{self, Stopwatch};

use crate::support::{Client, End, Gateway, LIMIT, routes_of};

const LISTENER: &str = r#"
listeners:
- { name: tls, address: "127.0.0.1:0", protocol: tls }
"#;

fn start(limits: &str, behavior: Behavior) -> (Gateway, Upstream) {
    let upstream = Upstream::start(behavior).unwrap();
    let config = format!("{LISTENER}limits: {{ {limits} }}\n");
    (
        Gateway::start(&config, &routes_of(&[("a", upstream.addr())])),
        upstream,
    )
}

#[test]
fn the_client_may_end_first() {
    let (gateway, upstream) = start("", Behavior::AnswersAtEof);
    let mut client = Client::hello(gateway.addr("tls"), "a.test");
    client.send(&vec![0; 3_000_000]);
    client.finish();
    let sent = ClientHello::for_name("a.test").encode().len() + 3_000_000;
    assert_eq!(client.rest(), sent.to_string().as_bytes());
    upstream.wait_closed(LIMIT).unwrap();
    gateway.wait_closed("tls", "closed", 1);
    let bytes = |way| {
        gateway.value(
            "rhizome_relay_bytes_total",
            &[("listener", "tls"), ("direction", way)],
        )
    };
    assert_eq!(bytes("rx"), sent as f64);
    assert_eq!(bytes("tx"), 7.0);
    let copied = gateway.value("rhizome_relay_copied_bytes_total", &[("listener", "tls")]);
    assert!(
        copied < 1_500_000.0,
        "most of a bulk transfer is spliced: {copied} copied"
    );
}

#[test]
fn the_endpoint_may_end_first() {
    let greeting = b"hello and goodbye".to_vec();
    let (gateway, upstream) = start(
        "",
        Behavior::EndsWriteFirst {
            greeting: greeting.clone(),
        },
    );
    let mut client = Client::hello(gateway.addr("tls"), "a.test");
    assert_eq!(client.rest(), greeting);
    let late = vec![1; 500_000];
    client.send(&late);
    let expected = (late.len() + ClientHello::for_name("a.test").encode().len()) as u64;
    wait::until("the late bytes to arrive", LIMIT, || {
        upstream.received() == expected
    })
    .unwrap();
    assert_eq!(upstream.open(), 1);
    client.finish();
    upstream.wait_closed(LIMIT).unwrap();
    gateway.wait_closed("tls", "closed", 1);
}

#[test]
fn resets_are_told_apart_by_side() {
    let (gateway, upstream) = start("", Behavior::Echo);
    let client = Client::established(gateway.addr("tls"), "a.test");
    client.reset();
    gateway.wait_closed("tls", "downstream_reset", 1);
    upstream.wait_closed(LIMIT).unwrap();

    let (gateway, _upstream) = start("", Behavior::Resets { after: 600 });
    let mut client = Client::hello(gateway.addr("tls"), "a.test");
    client.send(&[0; 1000]);
    client.end();
    gateway.wait_closed("tls", "upstream_reset", 1);
}

#[test]
fn only_idle_connection_is_ended() {
    let (gateway, upstream) = start("idleTimeout: 1s", Behavior::Echo);
    let mut busy = Client::established(gateway.addr("tls"), "a.test");
    let mut idle = Client::established(gateway.addr("tls"), "a.test");
    let clock = Stopwatch::start();
    while clock.elapsed() < Duration::from_millis(2500) {
        busy.expect_echo(b"x");
        wait::pause(Duration::from_millis(50));
    }
    assert_eq!(idle.end(), End::Closed);
    gateway.wait_closed("tls", "idle_timeout", 1);
    busy.expect_echo(b"still here");
    let clock = Stopwatch::start();
    busy.end();
    assert!(
        clock.elapsed() >= Duration::from_millis(900),
        "{:?}",
        clock.elapsed()
    );
    gateway.wait_closed("tls", "idle_timeout", 2);
    upstream.wait_closed(LIMIT).unwrap();
}

#[test]
fn a_connection_is_ended_at_its_age_however_busy() {
    let (gateway, upstream) = start("maxConnectionAge: 1s", Behavior::Echo);
    let clock = Stopwatch::start();
    let mut client = Client::established(gateway.addr("tls"), "a.test");
    while client.try_send(b"x").is_ok() && clock.elapsed() < LIMIT {
        wait::pause(Duration::from_millis(20));
    }
    let age = clock.elapsed();
    assert!(
        age >= Duration::from_millis(900) && age < Duration::from_secs(5),
        "{age:?}"
    );
    gateway.wait_closed("tls", "max_age", 1);
    upstream.wait_closed(LIMIT).unwrap();
}

#[test]
fn stalled_connection_does_not_stall_others() {
    let (gateway, upstream) = start("", Behavior::NeverReads);
    let echo = Upstream::start(Behavior::Echo).unwrap();
    let routes = routes_of(&[("a", upstream.addr()), ("b", echo.addr())]);
    gateway.dir.replace("routes.yaml", routes).unwrap();
    gateway.wait_generation(2);
    let stalled: Vec<Client> = (0..20)
        .map(|_| {
            let mut client = Client::hello(gateway.addr("tls"), "a.test");
            client.stream().set_nonblocking(true).unwrap();
            let chunk = [0; 65536];
            while client.try_send(&chunk).is_ok() {}
            client
        })
        .collect();
    let clock = Stopwatch::start();
    for _ in 0..50 {
        Client::established(gateway.addr("tls"), "b.test").expect_echo(&[7; 10_000]);
    }
    assert!(
        clock.elapsed() < Duration::from_secs(10),
        "{:?}",
        clock.elapsed()
    );
    assert_eq!(
        gateway.value("rhizome_cluster_connections_active", &[("cluster", "a")]),
        20.0
    );
    drop(upstream);
    gateway.wait_idle();
    drop(stalled);
}

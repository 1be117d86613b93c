//! Choosing and connecting endpoints: retries, ejection, time-outs, names, zones.

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use socket2::{Domain, Socket, Type};
use testkit::client_hello::ClientHello;
use testkit::upstream::{Behavior, Upstream};
use testkit::wait::{self, Stopwatch};

use crate::support::{Client, Gateway, LIMIT};

const LISTENERS: &str = r#"
listeners:
- { name: tls, address: "127.0.0.1:0", protocol: tls }
- { name: vpn, address: "127.0.0.1:0", protocol: connect }
"#;

/// Returns a routing file of one cluster `a` with these endpoints and settings.
fn cluster(endpoints: &[String], settings: &str) -> String {
    let list: Vec<String> = endpoints
        .iter()
        .map(|endpoint| format!("{{ address: \"{endpoint}\" }}"))
        .collect();
    let list = list.join(", ");
    format!(
        r#"
clusters: [{{ name: a, endpoints: [{list}], {settings} }}]
routes:
- {{ serverNames: ["a.test"], cluster: a }}
- {{ connectDestinations: ["a"], cluster: a }}
"#
    )
}

fn refusing(count: usize) -> Vec<String> {
    let ports = testkit::ports::free(count).unwrap();
    ports
        .iter()
        .map(|port| format!("127.0.0.1:{port}"))
        .collect()
}

fn echo() -> Upstream {
    Upstream::start(Behavior::Echo).unwrap()
}

/// An address where connecting takes for ever: a listener whose queue is full (listen(2)).
struct BlackHole {
    addr: SocketAddr,
    _listener: Socket,
    _queue: Vec<TcpStream>,
}

impl BlackHole {
    fn new() -> Self {
        let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        listener.bind(&any.into()).unwrap();
        listener.listen(0).unwrap();
        let addr = listener.local_addr().unwrap().as_socket().unwrap();
        let mut queue = Vec::new();
        let patience = Duration::from_millis(300);
        while let Ok(stream) = TcpStream::connect_timeout(&addr, patience) {
            queue.push(stream);
            assert!(queue.len() < 10, "this queue does not fill");
        }
        Self {
            addr,
            _listener: listener,
            _queue: queue,
        }
    }
}

#[test]
fn refusing_endpoints_are_skipped() {
    let good = echo();
    let mut endpoints = refusing(2);
    endpoints.push(good.addr().to_string());
    let settings = "balance: round-robin, outlierDetection: { consecutiveConnectFailures: 0 }";
    let gateway = Gateway::start(LISTENERS, &cluster(&endpoints, settings));
    for _ in 0..6 {
        let mut client = Client::established(gateway.addr("tls"), "a.test");
        client.finish();
        client.end();
    }
    gateway.wait_closed("tls", "closed", 6);
    assert_eq!(good.accepted(), 6);
    let labels = [("cluster", "a"), ("reason", "connect_refused")];
    let failures = gateway.value("rhizome_cluster_connect_failures_total", &labels);
    assert!(
        failures >= 6.0,
        "every round passes those that refuse: {failures}"
    );
    assert_eq!(gateway.value("rhizome_connect_seconds_count", &[]), 6.0);
}

#[test]
fn connect_retries_bound_attempts() {
    let settings = "connectRetries: 1, outlierDetection: { consecutiveConnectFailures: 0 }";
    let gateway = Gateway::start(LISTENERS, &cluster(&refusing(4), settings));
    Client::hello(gateway.addr("tls"), "a.test").end();
    gateway.wait_closed("tls", "connect_refused", 1);
    let failures = gateway.value(
        "rhizome_cluster_connect_failures_total",
        &[("cluster", "a")],
    );
    assert_eq!(failures, 2.0);
}

#[test]
fn failing_endpoint_is_ejected_and_returns() {
    let good = echo();
    let late = refusing(1).remove(0);
    let endpoints = [good.addr().to_string(), late.clone()];
    let settings = "balance: round-robin, \
                    outlierDetection: { consecutiveConnectFailures: 2, ejection: 1s }";
    let gateway = Gateway::start(LISTENERS, &cluster(&endpoints, settings));
    let states = |state| [("cluster", "a"), ("state", state)];
    let name = "rhizome_cluster_endpoints";
    assert_eq!(gateway.value(name, &states("healthy")), 2.0);
    let ejected = wait::until("the endpoint to be ejected", LIMIT, || {
        Client::established(gateway.addr("tls"), "a.test");
        gateway.value(name, &states("ejected")) == 1.0
    });
    ejected.unwrap();
    assert_eq!(gateway.value(name, &states("healthy")), 1.0);
    let failures = || {
        gateway.value(
            "rhizome_cluster_connect_failures_total",
            &[("cluster", "a")],
        )
    };
    assert_eq!(failures(), 2.0);
    gateway.wait_value(name, &states("ejected"), 0.0);
    let back = Upstream::serve(std::net::TcpListener::bind(&late).unwrap(), Behavior::Echo);
    let back = back.unwrap();
    let used = wait::until("the endpoint to be used again", LIMIT, || {
        Client::established(gateway.addr("tls"), "a.test");
        back.accepted() > 0
    });
    used.unwrap();
}

#[test]
fn when_all_are_ejected_all_are_tried() {
    let late = refusing(1).remove(0);
    let settings = "outlierDetection: { consecutiveConnectFailures: 1, ejection: 600s }";
    let endpoints = [refusing(1).remove(0), late.clone()];
    let gateway = Gateway::start(LISTENERS, &cluster(&endpoints, settings));
    Client::hello(gateway.addr("tls"), "a.test").end();
    let ejected = [("cluster", "a"), ("state", "ejected")];
    gateway.wait_value("rhizome_cluster_endpoints", &ejected, 2.0);
    let listener = std::net::TcpListener::bind(&late).unwrap();
    let _back = Upstream::serve(listener, Behavior::Echo).unwrap();
    Client::established(gateway.addr("tls"), "a.test");
}

#[test]
fn no_more_than_the_permitted_share_is_ejected() {
    let settings = "outlierDetection: \
                    { consecutiveConnectFailures: 1, ejection: 600s, maxEjectedPercent: 50 }";
    let gateway = Gateway::start(LISTENERS, &cluster(&refusing(4), settings));
    for _ in 0..6 {
        Client::hello(gateway.addr("tls"), "a.test").end();
    }
    gateway.wait_closed("tls", "connect_refused", 6);
    let ejected = [("cluster", "a"), ("state", "ejected")];
    assert_eq!(gateway.value("rhizome_cluster_endpoints", &ejected), 2.0);
}

#[test]
fn silent_endpoint_ends_at_connect_timeout() {
    let hole = BlackHole::new();
    let endpoints = [hole.addr.to_string()];
    let gateway = Gateway::start(LISTENERS, &cluster(&endpoints, "connectTimeout: 500ms"));
    let clock = Stopwatch::start();
    let mut client = Client::open(gateway.addr("vpn"));
    let answer = client.connect("a");
    let taken = clock.elapsed();
    assert!(answer.starts_with("HTTP/1.1 504 "), "{answer}");
    assert!(taken >= Duration::from_millis(450), "{taken:?}");
    assert!(taken < Duration::from_secs(5), "{taken:?}");
    gateway.wait_closed("vpn", "connect_timeout", 1);
    Client::hello(gateway.addr("tls"), "a.test").end();
    gateway.wait_closed("tls", "connect_timeout", 1);
    let labels = [("cluster", "a"), ("reason", "connect_timeout")];
    assert_eq!(
        gateway.value("rhizome_cluster_connect_failures_total", &labels),
        2.0
    );
}

#[test]
fn silent_endpoint_costs_one_timeout() {
    let (hole, good) = (BlackHole::new(), echo());
    let endpoints = [hole.addr.to_string(), good.addr().to_string()];
    let settings = "balance: round-robin, connectTimeout: 300ms";
    let gateway = Gateway::start(LISTENERS, &cluster(&endpoints, settings));
    for _ in 0..2 {
        Client::established(gateway.addr("tls"), "a.test");
    }
    assert_eq!(good.accepted(), 2);
}

#[test]
fn connect_200_follows_endpoint_connection() {
    let hole = BlackHole::new();
    let endpoints = [hole.addr.to_string()];
    let gateway = Gateway::start(LISTENERS, &cluster(&endpoints, "connectTimeout: 60s"));
    let mut client = Client::open(gateway.addr("vpn"));
    client.send(crate::support::connect_head("a").as_bytes());
    let dialing = wait::until("the connection to have its cluster", LIMIT, || {
        gateway
            .connections()
            .iter()
            .any(|open| open["cluster"] == "a")
    });
    dialing.unwrap();
    client.stream().set_nonblocking(true).unwrap();
    let mut buf = [0; 1];
    let early = client.stream().peek(&mut buf).unwrap_err();
    assert_eq!(early.kind(), std::io::ErrorKind::WouldBlock);
}

#[test]
fn endpoints_may_be_host_names_of_either_family() {
    let four = echo();
    let port = four.addr().port();
    let endpoints = [format!("localhost:{port}")];
    let gateway = Gateway::start(LISTENERS, &cluster(&endpoints, "connectTimeout: 5s"));
    Client::established(gateway.addr("tls"), "a.test");
    assert_eq!(four.accepted(), 1);

    let listener = std::net::TcpListener::bind("[::1]:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let six = Upstream::serve(listener, Behavior::Echo).unwrap();
    let routes = cluster(&[format!("localhost:{port}")], "connectTimeout: 5s");
    let before = gateway.value("rhizome_snapshot_generation", &[]);
    gateway.dir.replace("routes.yaml", &routes).unwrap();
    gateway.wait_value("rhizome_snapshot_generation", &[], before + 1.0);
    Client::established(gateway.addr("tls"), "a.test");
    assert_eq!(six.accepted(), 1);
}

#[test]
fn own_zone_is_preferred_until_it_fails() {
    let near = echo();
    let far = echo();
    let gone = refusing(1).remove(0);
    let routes = |own: &str| {
        let (own, other) = (own.to_owned(), far.addr());
        format!(
            r#"
clusters:
- name: a
  endpoints: [{{ address: "{other}", zone: far }}, {{ address: "{own}", zone: near }}]
routes: [{{ serverNames: ["a.test"], cluster: a }}]
"#
        )
    };
    let first = routes(&near.addr().to_string());
    let gateway = Gateway::start_in_zone(Some("near"), LISTENERS, &first);
    for _ in 0..8 {
        Client::established(gateway.addr("tls"), "a.test");
    }
    assert_eq!((near.accepted(), far.accepted()), (8, 0));
    gateway.dir.replace("routes.yaml", routes(&gone)).unwrap();
    gateway.wait_generation(2);
    Client::established(gateway.addr("tls"), "a.test");
    assert_eq!(far.accepted(), 1);
}

#[test]
fn one_client_is_bound_to_one_endpoint_by_maglev() {
    let upstreams = [echo(), echo(), echo(), echo()];
    let endpoints = upstreams
        .each_ref()
        .map(|upstream| upstream.addr().to_string());
    let gateway = Gateway::start(LISTENERS, &cluster(&endpoints, "balance: maglev"));
    for _ in 0..8 {
        Client::established(gateway.addr("tls"), "a.test");
    }
    let used: Vec<usize> = upstreams.iter().map(Upstream::accepted).collect();
    assert_eq!(used.iter().max(), Some(&8), "{used:?}");
    for last in 2..40 {
        let mut client = Client::from_ip(&format!("127.0.0.{last}"), gateway.addr("tls"));
        client.expect_echo(&ClientHello::for_name("a.test").encode());
    }
    let used = upstreams.iter().filter(|upstream| upstream.accepted() > 0);
    assert!(used.count() > 1, "clients are spread");
}

#[cfg(feature = "netns-tests")]
#[test]
fn endpoint_without_local_ports_is_passed_over() {
    let namespace = testkit::netns::Namespace::new("ports").unwrap();
    let test = || {
        let echo = |port| {
            let listener = std::net::TcpListener::bind(("127.0.0.1", port)).unwrap();
            Upstream::serve(listener, Behavior::Echo).unwrap()
        };
        let (exhausted, free) = (echo(7001), echo(7002));
        let endpoints = [&exhausted, &free].map(|own| own.addr().to_string());
        let gateway = Gateway::start(LISTENERS, &cluster(&endpoints, ""));
        let range = "/proc/sys/net/ipv4/ip_local_port_range";
        std::fs::write(range, "50000 50007").unwrap();
        let mut all = Vec::new();
        let last = loop {
            match TcpStream::connect(exhausted.addr()) {
                Ok(stream) => all.push(stream),
                Err(error) => break error,
            }
        };
        assert_eq!(last.kind(), std::io::ErrorKind::AddrNotAvailable);
        // Each balancer would choose the first for one of them.
        let open: Vec<Client> = (2..5)
            .map(|host| {
                let from = format!("127.0.0.{host}");
                let mut client = Client::from_ip(&from, gateway.addr("tls"));
                client.expect_echo(&ClientHello::for_name("a.test").encode());
                client
            })
            .collect();
        assert_eq!(free.open(), open.len());
        let failures = "rhizome_cluster_connect_failures_total";
        let labels = [("cluster", "a"), ("reason", "connect_failed")];
        assert_eq!(
            gateway.metrics().value(failures, &labels).unwrap_or(0.0),
            0.0
        );
    };
    namespace.run(test).unwrap();
}

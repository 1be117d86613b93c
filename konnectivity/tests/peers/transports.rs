//! The same requests over each of the three transports, and nothing left of any.

use std::thread;

use testkit::command;
use testkit::kubelet::pattern;
use testkit::process::ChildGuard;
use testkit::wait;

use crate::pair::LIMIT;
use crate::stage::{DOWN, Stage, Transport, proxied};

#[test]
fn kubelet_is_reached_by_http_connect_over_uds() {
    every_kind_of_request(Transport::HttpConnectUds);
}

#[test]
fn a_kubelet_is_reached_by_http_connect_over_tls() {
    every_kind_of_request(Transport::HttpConnectTls);
}

#[test]
fn kubelet_is_reached_by_grpc_over_uds() {
    every_kind_of_request(Transport::GrpcUds);
}

/// One stage for all kinds, since an API server takes its time to come up.
fn every_kind_of_request(transport: Transport) {
    let stage = Stage::new(transport);
    small_answers(&stage);
    large_bodies(&stage);
    slow_answers(&stage);
    events_as_they_come(&stage);
    upgrades(&stage);
    cancelled_requests(&stage);
    unreachable(&stage, transport);
    many_at_once(&stage);
    stage.pair.wait_idle();
    let limit = LIMIT;
    let gone = || stage.cluster.kubelet.open() == 0;
    wait::until("the kubelet's connections to end", limit, gone).unwrap();
}

fn small_answers(stage: &Stage) {
    let healthz = command::run(&mut stage.cluster.kubectl("healthz")).unwrap();
    assert_eq!(healthz, "ok");
    let metrics = command::run(&mut stage.cluster.kubectl("metrics")).unwrap();
    assert!(metrics.contains("kubelet_node_name{node=\"node-0\"} 1"));
    assert_eq!(stage.cluster.get("nothing").status, 404);
    // It was our pair that carried them: one tunnel for each.
    let name = "rhizome_konnectivity_tunnels_ended_total";
    wait::until("three tunnels", LIMIT, || {
        stage.pair.server.metric(name) >= 3.0
    })
    .unwrap();
}

fn large_bodies(stage: &Stage) {
    let bytes = 50 << 20;
    let answer = stage.cluster.get(&format!("big?bytes={bytes}"));
    assert!(answer.body == pattern(bytes), "{}", answer.body.len());
    let body = "0123456789".repeat(1 << 20);
    let mut connection = stage.cluster.connection();
    let echo = connection.request("POST", &proxied("node-0", "echo"), Some(&body));
    let echo = echo.unwrap();
    assert!(echo.text() == body, "{}", echo.body.len());
}

fn slow_answers(stage: &Stage) {
    let answer = command::run(&mut stage.cluster.kubectl("logs?lines=11&every=1000")).unwrap();
    let lines: Vec<String> = (1..=11).map(|line| format!("line {line}")).collect();
    assert_eq!(answer.trim_end(), lines.join("\n"));
}

/// The second event exists only once the first has arrived.
fn events_as_they_come(stage: &Stage) {
    let connection = stage.cluster.connection();
    let mut watch = connection.watch(&proxied("node-0", "events")).unwrap();
    let first = watch.next_event().unwrap().unwrap();
    stage.cluster.kubelet.release();
    let second = watch.next_event().unwrap().unwrap();
    let number = |event: &serde_json::Value| event["sequence"].as_u64().unwrap();
    assert_eq!(number(&second), number(&first) + 1);
    stage.pair.wait_tunnels(1.0);
    drop(watch);
    stage.pair.wait_idle();
}

fn upgrades(stage: &Stage) {
    let connection = stage.cluster.connection();
    let path = proxied("node-0", "upgrade");
    let mut upgraded = connection.upgrade(&path, "SPDY/3.1").unwrap();
    for length in [1, 10_000, 3] {
        let bytes = pattern(length);
        assert!(upgraded.exchange(&bytes).unwrap() == bytes, "{length}");
    }
    drop(upgraded);
    stage.pair.wait_idle();
}

/// A client is killed before it was answered, another in the middle of an answer, a third while it
/// was not reading.
fn cancelled_requests(stage: &Stage) {
    let start = |path: &str, log: &str| {
        let log = stage.dir.join(log);
        ChildGuard::spawn("kubectl", &stage.cluster.kubectl(path), &log).unwrap()
    };
    let mut waiting = start("hang", "hang.log");
    let mut watching = start("events", "events.log");
    watching.wait_log("\"sequence\":1", LIMIT).unwrap();
    let connection = stage.cluster.connection();
    let mut stalled = connection
        .body(&proxied("node-0", "big?bytes=1000000000"))
        .unwrap();
    stalled.next(1_000_000).unwrap();
    stage.pair.wait_tunnels(3.0);
    waiting.kill().unwrap();
    watching.kill().unwrap();
    drop(stalled);
    stage.pair.wait_idle();
}

fn unreachable(stage: &Stage, transport: Transport) {
    let mut connection = stage.cluster.connection();
    let answer = connection.get(&proxied(DOWN, "healthz")).unwrap();
    let text = answer.text();
    // What the API server makes of it: of an HTTP answer it repeats the status only.
    let expected = match transport {
        Transport::GrpcUds => "connection refused",
        Transport::HttpConnectTls | Transport::HttpConnectUds => "502 Bad Gateway",
    };
    assert!(answer.status >= 500 && text.contains(expected), "{text}");
}

fn many_at_once(stage: &Stage) {
    thread::scope(|scope| {
        for number in 0..20 {
            let cluster = &stage.cluster;
            scope.spawn(move || {
                let body = format!("{number} ").repeat(50_000 + number);
                let mut connection = cluster.connection();
                let path = proxied("node-0", "echo");
                let answer = connection.request("POST", &path, Some(&body)).unwrap();
                assert!(answer.text() == body, "{number}: {}", answer.body.len());
            });
        }
    });
}

//! The API server stays; agent or server behind it end and are there again.

use testkit::wait;

use crate::pair::LIMIT;
use crate::stage::{Stage, Transport, proxied};

#[test]
fn api_server_survives_restart_of_pair() {
    outlives(Transport::GrpcUds);
}

#[test]
fn an_api_server_outlives_the_pair_over_tls() {
    outlives(Transport::HttpConnectTls);
}

fn outlives(transport: Transport) {
    let mut stage = Stage::new(transport);
    assert!(stage.cluster.is_healthy());
    agent_killed(&mut stage);
    agent_replaced(&mut stage);
    server_killed(&mut stage);
    stage.pair.wait_idle();
}

/// Its tunnels end, its successor carries the next.
fn agent_killed(stage: &mut Stage) {
    let connection = stage.cluster.connection();
    let mut watch = connection.watch(&proxied("node-0", "events")).unwrap();
    watch.next_event().unwrap();
    stage.pair.agent.restart();
    let end = watch.next_event();
    assert!(!matches!(end, Ok(Some(_))), "{end:?}");
    stage.pair.agent.wait_ready();
    served(stage);
    stage.pair.wait_idle();
}

fn agent_replaced(stage: &mut Stage) {
    stage.pair.agent.restart_gently();
    stage.pair.agent.wait_ready();
    served(stage);
}

fn server_killed(stage: &mut Stage) {
    stage.pair.server.restart();
    stage.pair.server.wait_ready();
    served(stage);
}

fn served(stage: &Stage) {
    wait::until("the kubelet to answer", LIMIT, || {
        stage.cluster.is_healthy()
    })
    .unwrap();
}

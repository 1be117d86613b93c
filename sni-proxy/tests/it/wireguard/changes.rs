//! What happens under a flow: routes that change, a gateway that restarts or drains.

use super::peers::{
    Peer, Server, config, data, index, initiation, numbered, response, wait_dropped, wait_flows,
    with_route,
};
use crate::support::Gateway;

#[test]
fn a_flow_stays_as_long_as_its_route_is_there() {
    let (one, two) = (Server::start(), Server::start());
    let both = numbered(&[&one, &two]);
    let gateway = Gateway::start(&config(""), &both);
    let client = Peer::new(&gateway);
    let seen = client.exchange(&one, 1, 1);
    client.exchange(&two, 2, 1);

    // Another route goes: nothing happens to this one.
    gateway
        .dir
        .replace("routes.yaml", numbered(&[&one]))
        .unwrap();
    gateway.wait_closed("wg", "unknown_destination", 1);
    seen.answer(&data(7, 2));
    assert_eq!(client.receive(), data(7, 2));
    client.exchange(&one, 1, 3);
    client.send(&data(index(2), 4));
    wait_dropped(&gateway, "unknown_route", 1);

    // Its server moves: the flow goes on to where it is now.
    gateway
        .dir
        .replace("routes.yaml", numbered(&[&two]))
        .unwrap();
    gateway.wait_generation(3);
    client.exchange(&two, 1, 5);
    seen.answer(&data(7, 6)); // and who was its server may not answer any more
    wait_dropped(&gateway, "unknown_sender", 1);
    wait_flows(&gateway, 1);

    // Clients like it are no longer allowed.
    let denied =
        numbered(&[&two]).replace("cluster: c1", "cluster: c1, allowSources: [10.0.0.0/8]");
    gateway.dir.replace("routes.yaml", denied).unwrap();
    gateway.wait_closed("wg", "source_denied", 1);
    client.send(&data(index(1), 7));
    wait_dropped(&gateway, "source_denied", 1);
}

#[test]
fn flow_survives_gateway_restart() {
    let server = Server::start();
    let port = testkit::ports::free(1).unwrap()[0];
    let text = config("").replace("127.0.0.1:0", &format!("127.0.0.1:{port}"));
    let gateway = Gateway::start(&text, &numbered(&[&server]));
    let client = Peer::new(&gateway);
    client.exchange(&server, 1, 1);
    drop(gateway);
    let gateway = Gateway::start(&text, &numbered(&[&server]));
    client.exchange(&server, 1, 2);
    // In the middle of a session, and of a handshake.
    drop(gateway);
    let gateway = Gateway::start(&text, &numbered(&[&server]));
    client.send(&with_route(initiation(7, None), 1));
    server.receive().answer(&response(index(1), 7));
    assert_eq!(client.receive(), response(index(1), 7));
    wait_flows(&gateway, 1);
}

#[test]
fn drain_keeps_flows_and_takes_no_new() {
    let server = Server::start();
    let text = config("drain: { delay: 0s, timeout: 3600s }\n");
    let gateway = Gateway::start(&text, &numbered(&[&server]));
    let client = Peer::new(&gateway);
    client.exchange(&server, 1, 1);
    let answer = crate::support::Probe::ask(gateway.admin, "POST", "/drain");
    assert!(answer.status < 300, "{}", answer.status);
    assert_eq!(gateway.readiness(), 503);
    let late = Peer::new(&gateway);
    testkit::wait::until("new flows to be refused", crate::support::LIMIT, || {
        late.send(&data(index(9), 2));
        gateway.value(super::peers::DROPPED, &[("reason", "draining")]) > 0.0
    })
    .unwrap();
    client.exchange(&server, 1, 3);
}

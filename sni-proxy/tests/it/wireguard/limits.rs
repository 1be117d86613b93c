//! Bounds: flows of the process, of a cluster, in time; and configurations that are refused.

use std::path::Path;

use sni_proxy::Config;

use super::peers::{
    DROPPED, Peer, Server, config, data, index, initiation, numbered, wait_dropped, wait_flows,
    with_route,
};
use crate::support::{Gateway, LIMIT};

#[test]
fn full_table_evicts_unproven_flows_only() {
    let server = Server::start();
    let text = config("workers: 1\nwireguard: { flows: 3 }\n");
    let gateway = Gateway::start(&text, &numbered(&[&server]));
    let served = Peer::new(&gateway);
    served.exchange(&server, 1, 1);
    let claims: Vec<Peer> = (0..5).map(|_| Peer::new(&gateway)).collect();
    for claim in &claims {
        claim.send(&data(index(1), 2));
        let seen = server.receive();
        assert_eq!(seen.client, claim.addr());
    }
    wait_flows(&gateway, 2); // one of them at a time
    gateway.wait_value("rhizome_wireguard_unproven_total", &[], 4.0);
    served.exchange(&server, 1, 3);

    // All three flows are served: no other client of their network is, until one has been silent.
    for claim in &claims[3..] {
        claim.exchange(&server, 1, 4);
    }
    claims[0].send(&data(index(1), 5));
    server.receive().answer(&data(7, 5));
    wait_dropped(&gateway, "flow_table", 1);
    served.exchange(&server, 1, 6);
}

#[test]
fn silent_client_gives_way_in_full_table() {
    let server = Server::start();
    let text = config("workers: 1\nwireguard: { flows: 1, flowIdle: 9s }\n");
    let gateway = Gateway::start(&text, &numbered(&[&server]));
    let (first, second) = (Peer::new(&gateway), Peer::new(&gateway));
    first.exchange(&server, 1, 1);
    let gave_way = || {
        second.send(&data(index(1), 2));
        server.receive().answer(&data(7, 2));
        gateway.value("rhizome_connections_closed_total", &[("reason", "limit")]) == 1.0
    };
    testkit::wait::until("the silent client's place is given away", LIMIT, gave_way).unwrap();
    second.receive();
}

#[test]
fn a_cluster_has_as_many_flows_as_it_may() {
    let server = Server::start();
    let routes = numbered(&[&server]).replace("name: c1,", "name: c1, maxConnections: 1,");
    let gateway = Gateway::start(&config(""), &routes);
    let (first, second) = (Peer::new(&gateway), Peer::new(&gateway));
    first.exchange(&server, 1, 1);
    second.send(&data(index(1), 2));
    wait_dropped(&gateway, "cluster_limit", 1);
    first.exchange(&server, 1, 3);
    assert_eq!(
        gateway.value("rhizome_cluster_connections_active", &[]),
        1.0
    );
}

#[test]
fn a_silent_client_is_forgotten_and_sent_nothing() {
    let server = Server::start();
    let text = config("wireguard: { flowIdle: 1s }\n");
    let gateway = Gateway::start(&text, &numbered(&[&server]));
    let client = Peer::new(&gateway);
    let seen = client.exchange(&server, 1, 1);
    gateway.wait_closed("wg", "idle_timeout", 1);
    seen.answer(&data(7, 2));
    wait_dropped(&gateway, "unknown_client", 1);
    wait_flows(&gateway, 0);
    client.exchange(&server, 1, 3);
}

#[test]
fn source_tokens_bound_unknown_datagrams() {
    let server = Server::start();
    let text = config("workers: 1\nwireguard: { sourceRate: 1, sourceBurst: 5 }\n");
    let gateway = Gateway::start(&text, &numbered(&[&server]));
    let client = Peer::new(&gateway);
    client.exchange(&server, 1, 1);
    let other = Peer::new(&gateway);
    for _ in 0..30 {
        other.send(&initiation(7, None));
    }
    testkit::wait::until("tokens to be spent", LIMIT, || {
        gateway.value(DROPPED, &[("reason", "source_rate")]) >= 20.0
    })
    .unwrap();
    // A flow that is served needs none; another network has its own.
    client.exchange(&server, 1, 2);
    let elsewhere = Peer::at("127.0.9.1", gateway.addr("wg"));
    elsewhere.exchange(&server, 1, 3);
}

#[test]
fn silent_server_is_left_for_another() {
    let (silent, server) = (Server::start(), Server::start());
    let routes = format!(
        "clusters:\n- {{ name: c, connectTimeout: 10ms, endpoints: [{{ address: \"{}\" }}, {{ address: \"{}\" }}] }}\n\
         routes:\n- {{ wireguard: {{ routeId: 1 }}, cluster: c }}\n",
        silent.addr(),
        server.addr(),
    );
    let gateway = Gateway::start(&config(""), &routes);
    let client = Peer::new(&gateway);
    let patience = std::time::Duration::from_millis(50);
    server.socket().set_read_timeout(Some(patience)).unwrap();
    testkit::wait::until("the other server to be asked", LIMIT, || {
        client.send(&with_route(initiation(7, None), 1));
        server.try_receive().is_some()
    })
    .unwrap();
    wait_flows(&gateway, 1);
}

#[test]
fn meaningless_settings_are_refused_with_key() {
    let problems = |text: &str| {
        let whole = format!("{text}routing: {{ file: routes.yaml }}\n");
        let refused = settings::from_text::<Config>(&whole, Path::new("sni-proxy.yaml"));
        refused.unwrap_err().to_string()
    };
    let listener = |more: &str| {
        format!(
            "listeners:\n- {{ name: wg, address: \"[::]:51820\", protocol: wireguard{more} }}\n"
        )
    };
    for (text, wanted) in [
        (
            listener(", proxyProtocol: required"),
            "listeners[0].proxyProtocol: means nothing",
        ),
        (
            listener(", tcp: { keepalive: 1s }"),
            "listeners[0].tcp: means nothing",
        ),
        (
            listener("") + "wireguard: { flows: 0 }\n",
            "wireguard.flows: 0 would",
        ),
        (
            listener("") + "wireguard: { flowIdle: 0s }\n",
            "wireguard.flowIdle: not between",
        ),
        (
            listener("") + "wireguard: { sourceRate: 0 }\n",
            "wireguard.sourceRate: 0 would",
        ),
        (
            listener("") + "wireguard: { receiveBuffer: 1KiB }\n",
            "wireguard.receiveBuffer: not",
        ),
        (
            listener("") + "- { name: b, address: \"0.0.0.0:51820\", protocol: wireguard }\n",
            "listeners[1].address: two listeners",
        ),
    ] {
        let problem = problems(&text);
        assert!(problem.contains(wanted), "{wanted:?} is not in {problem}");
    }
    let both = listener("") + "- { name: tls, address: \"[::]:51820\", protocol: tls }\n";
    let whole = both + "routing: { file: routes.yaml }\n";
    assert!(settings::from_text::<Config>(&whole, Path::new("sni-proxy.yaml")).is_ok());
}

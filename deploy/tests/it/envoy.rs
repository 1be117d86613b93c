//! Envoy in the place of our gateway, with the routes that Gardener's objects give it.

use std::net::SocketAddr;
use std::path::Path;

use testkit::netns::{Namespace, Place};
use testkit::peers::envoy::{Envoy, Gateway, GatewayListener};

use crate::network::Network;
use crate::objects::{ADVERTISED, API, KONNECTIVITY, SHOOT};

/// Starts it on the ports of Gardener's gateway pods.
pub(crate) fn start(at: &Namespace, dir: &Path) -> Envoy {
    let on = |port: u16| SocketAddr::from(([0, 0, 0, 0], port));
    let cluster =
        |port: u16, service: &str| format!("outbound|{port}||{service}.{SHOOT}.svc.cluster.local");
    let to = |place: &str, port: u16| {
        let ip = Network::ip(place).parse().unwrap();
        vec![SocketAddr::new(ip, port)]
    };
    let api = cluster(443, "kube-apiserver");
    let agents = cluster(8091, "konnectivity-server-agents");
    let mut clusters = vec![
        (api.clone(), to("shoot-api", 443)),
        (agents.clone(), to("konnectivity-server", 8091)),
    ];
    for server in ["vpn-seed-server-0", "vpn-seed-server-1"] {
        clusters.push((cluster(1194, server), to(server, 1194)));
    }
    let gateway = Gateway {
        listeners: vec![
            GatewayListener::Tls {
                listen: on(9443),
                routes: vec![
                    (vec![API.to_owned()], api.clone()),
                    (vec![KONNECTIVITY.to_owned()], agents),
                ],
            },
            GatewayListener::ProxyProtocol {
                listen: on(8443),
                routes: vec![(ADVERTISED.parse().unwrap(), api)],
            },
            GatewayListener::Connect {
                listen: on(8132),
                header: "Reversed-VPN".to_owned(),
            },
        ],
        clusters,
    };
    Envoy::start(Place::In(at), dir, "gateway", &gateway.resources())
        .unwrap_or_else(|error| panic!("{error:#}"))
}

//! Whose pods there are, who is led to them, and the ways to the end that are asked.
//!
//! ```text
//!   by name, by node proxy ─▶ gateway ─▶ the shoot's API server, and the other one's
//!   API server ─▶ vpn-server ═ vpn-client ─▶ kubelet                    and the other one's, asked as by it
//!   as an API server ─▶ konnectivity-server ◀─ konnectivity-agent ─▶ kubelet
//! ```

use std::net::SocketAddr;

use testkit::http::{Proxy, Target};

use crate::api::LIMIT;
use crate::network::{GATEWAY, NODE, Network};
use crate::objects::{self, ADVERTISED, API, SHOOT};
use crate::roll::pods::Workload;
use crate::roll::seed::{CONTROLLER, KONNECTIVITY, OTHER, OTHER_ADVERTISED, OTHER_API, Seed, VPN};
use crate::roll::services::{Known, Service};
use crate::roll::traffic::Path;
use crate::roll::{
    BY_KONNECTIVITY, BY_NAME, BY_NODE, BY_VPN, OTHER_BY_NAME, OTHER_BY_NODE, OTHER_BY_VPN,
};

/// Returns whose pods there are.
pub(crate) fn workloads(seed: &Seed<'_>) -> Vec<Workload> {
    let own = |key, (directory, kind, name), places, replicas| Workload {
        key,
        kind,
        name,
        objects: seed.built(directory),
        places,
        replicas,
        account: (key == "controller").then(|| seed.account()),
        other: false,
    };
    let other = |key, (directory, kind, name), places| Workload {
        objects: seed.built_for_other(directory),
        other: true,
        ..own(key, (directory, kind, name), places, 1)
    };
    let vpn_server = ("control-plane/vpn-server", "StatefulSet", "vpn-seed-server");
    let vpn_client = ("shoot/vpn-client/base", "StatefulSet", "vpn-shoot");
    let node = ("shoot/apiserver-proxy", "DaemonSet", "apiserver-proxy");
    vec![
        own(
            "controller",
            ("seed/controller", "Deployment", "rhizome-netpol-controller"),
            &[
                "netpol-controller-0",
                "netpol-controller-1",
                "netpol-controller-2",
                "netpol-controller-3",
            ],
            2,
        ),
        // The autoscaler's least.
        own(
            "gateway",
            ("seed/gateway/base", "Deployment", "sni-proxy"),
            &["sni-proxy-0", "sni-proxy-1", "sni-proxy-2", "sni-proxy-3"],
            2,
        ),
        own("node", node, &["node"], 1),
        own(
            "vpn-server",
            vpn_server,
            &[
                "vpn-seed-server-0",
                "vpn-seed-server-1",
                "vpn-seed-server-0b",
                "vpn-seed-server-1b",
            ],
            2,
        ),
        own("vpn-client", vpn_client, &["vpn-shoot-0", "vpn-shoot-1"], 2),
        own(
            "konnectivity-server",
            (
                "control-plane/konnectivity-server",
                "Deployment",
                "konnectivity-server",
            ),
            &[
                "konnectivity-server-0",
                "konnectivity-server-1",
                "konnectivity-server-2",
                "konnectivity-server-3",
            ],
            2,
        ),
        own(
            "konnectivity-agent",
            (
                "shoot/konnectivity-agent",
                "Deployment",
                "konnectivity-agent",
            ),
            &[
                "konnectivity-agent-0",
                "konnectivity-agent-1",
                "konnectivity-agent-2",
                "konnectivity-agent-3",
            ],
            2,
        ),
        other("other-node", node, &["other-node"]),
        other("other-vpn-server", vpn_server, &["other-vpn-seed-server-0"]),
        other("other-vpn-client", vpn_client, &["other-vpn-shoot-0"]),
    ]
}

/// Returns the Services, with who knows where their pods are.
pub(crate) fn services<'n>(network: &'n Network, seed: &Seed<'_>) -> Vec<Service<'n>> {
    let gateways = ["sni-proxy-0", "sni-proxy-1", "sni-proxy-2", "sni-proxy-3"];
    let to_gateways = gateways.map(|name| network.at(name)).to_vec();
    let gateway = seed.built("seed/gateway/base");
    let controller = seed.built("seed/controller");
    let vpn = seed.built("control-plane/vpn-server");
    let konnectivity = seed.built("control-plane/konnectivity-server");
    let other = seed.built_for_other("control-plane/vpn-server");
    let of_api = |address: &str| Known::Clients(vec![network.at("api")], address.to_owned());
    let asker = Known::Clients(vec![network.at("prometheus")], KONNECTIVITY.to_owned());
    let at = Known::Clients(to_gateways, CONTROLLER.to_owned());
    let balancer = Known::Balancer(network.at("balancer"));
    let servers = ["vpn-seed-server-0", "vpn-seed-server-1"];
    let mut all = vec![
        Service::of(&gateway, "istio-ingressgateway", balancer, "gateway", None),
        Service::of(
            &controller,
            "rhizome-netpol-controller",
            at,
            "controller",
            None,
        ),
        Service::of(&vpn, "vpn-seed-server", of_api(VPN), "vpn-server", None),
        Service::of(
            &konnectivity,
            "konnectivity-server",
            asker,
            "konnectivity-server",
            None,
        ),
        Service::of(
            &konnectivity,
            "konnectivity-server-agents",
            Known::Gateway,
            "konnectivity-server",
            None,
        ),
        Service::of(
            &other,
            servers[0],
            Known::Gateway,
            "other-vpn-server",
            Some(servers[0]),
        ),
    ];
    for name in servers {
        all.push(Service::of(
            &vpn,
            name,
            Known::Gateway,
            "vpn-server",
            Some(name),
        ));
    }
    all
}

/// Returns every way there is.
pub(crate) fn paths<'n>(network: &'n Network, seed: &Seed<'_>) -> Vec<Path<'n>> {
    let at = |ip: &str, port: u16| SocketAddr::new(ip.parse().unwrap(), port);
    let path = |name, from, target: Target, prefix, answers| Path {
        name,
        from: network.at(from),
        target: target.timeout(LIMIT),
        prefix,
        answers,
    };
    let (own, others) = (seed.shoot.pem(), seed.other.pem());
    let kubelets = seed.authorities.kubelets.pem();
    let through = |service: &str, authority_pem: &str, identity| Proxy::ConnectTls {
        authority: format!("{NODE}:10250"),
        server_name: service.to_owned(),
        authority_pem: authority_pem.to_owned(),
        identity,
    };
    let konnectivity = through(
        objects::KONNECTIVITY_SERVICE,
        seed.authorities.konnectivity.pem(),
        seed.authorities.frontend().unwrap(),
    );
    let (identity, authority) = seed.client_of_other();
    let other_vpn = Target::tls(at(&Network::ip("other-vpn-seed-server-0"), 9443), kubelets);
    let by_name = |pem, name| Target::tls(at(GATEWAY, 443), pem).server_name(name);
    vec![
        path(BY_NAME, "node", by_name(own, API), "", SHOOT),
        path(
            BY_NODE,
            "node",
            Target::tls(at(ADVERTISED, 443), own),
            "",
            SHOOT,
        ),
        path(
            BY_VPN,
            "api",
            seed.api.server.target(),
            "/api/v1/nodes/node-a/proxy",
            "node-a",
        ),
        path(
            BY_KONNECTIVITY,
            "prometheus",
            Target::tls(at(KONNECTIVITY, 8090), kubelets).proxy(konnectivity),
            "",
            "node-a",
        ),
        path(
            OTHER_BY_NAME,
            "other-node",
            by_name(others, OTHER_API),
            "",
            OTHER,
        ),
        path(
            OTHER_BY_NODE,
            "other-node",
            Target::tls(at(OTHER_ADVERTISED, 443), others),
            "",
            OTHER,
        ),
        path(
            OTHER_BY_VPN,
            "prometheus",
            other_vpn.proxy(through(objects::VPN_SERVICE, &authority, identity)),
            "",
            "node-b",
        ),
    ]
}

/// Returns the names that pods can resolve.
pub(crate) fn hosts() -> String {
    format!(
        "127.0.0.1 localhost\n{GATEWAY} {API} {} {OTHER_API}\n\
         {CONTROLLER} rhizome-netpol-controller.garden.svc.cluster.local\n",
        objects::KONNECTIVITY,
    )
}

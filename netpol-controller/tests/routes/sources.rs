//! Who may use a route: both gateways refuse the same clients, and lead them nowhere else.
//!
//! No object says so yet, so that the server is fed by the test itself.

use std::net::SocketAddr;

use route::{ClusterSpec, EndpointSpec, RouteMatch, RouteSpec};
use serde_json::json;
use testkit::api_server::ApiServer;
use testkit::certs::Authority;
use testkit::netns::Place;
use testkit::peers::envoy::Envoy;
use testkit::tempdir::TempDir;
use testkit::{command, wait};

use crate::ask::{Answer, Ask, INNER, Listener, Ports, ask};
use crate::control::{self, Control, loopback};
use crate::program::{LIMIT, Program};
use crate::programs::announce;
use crate::seed::listeners;

const OPEN: &str = "outbound|443||open.test.svc.cluster.local";
const CLOSED: &str = "outbound|443||closed.test.svc.cluster.local";

/// A pair of routes for each way to be led: one for us, and one for others.
fn routes() -> Vec<RouteSpec> {
    let names = |names: &[&str]| {
        let names = names.iter().map(|name| (*name).to_owned());
        RouteMatch::ServerNames(names.collect())
    };
    let destination = |prefix: &str, port| RouteMatch::Destinations {
        prefixes: vec![prefix.parse().unwrap()],
        port,
    };
    let connect = |value: &str| RouteMatch::ConnectDestinations(vec![value.to_owned()]);
    let allow = |matches: RouteMatch, cluster: &str, sources: &[&str]| {
        let mut spec = RouteSpec::new(matches, cluster);
        spec.allow_sources = sources.iter().map(|own| own.parse().unwrap()).collect();
        spec
    };
    let (us, others) = (
        ["127.0.0.0/8", "::1/128"],
        ["192.0.2.0/24", "2001:db8::/32"],
    );
    vec![
        allow(names(&["us.example.com"]), OPEN, &us),
        allow(names(&["others.example.com"]), CLOSED, &others),
        // More general than what refuses us, and open to all.
        allow(names(&["*.example.com"]), OPEN, &[]),
        allow(names(&["*"]), CLOSED, &others),
        allow(destination("10.1.2.3/32", Some(443)), OPEN, &us),
        allow(destination("10.1.2.4/32", Some(443)), CLOSED, &others),
        allow(destination("10.1.2.0/24", None), OPEN, &[]),
        allow(connect("us"), OPEN, &us),
        allow(connect("others"), CLOSED, &others),
    ]
}

/// The requests, with what both answer.
fn requests() -> Vec<(Ask, Answer)> {
    let open = || Answer::Shoot("open".to_owned());
    let named = |name: &str| Ask::Name(Some(name.to_owned()));
    let mut all = vec![
        (named("us.example.com"), open()),
        (named("others.example.com"), Answer::Nothing),
        (named("any.example.com"), open()),
        (named("example.org"), Answer::Nothing),
        (Ask::Name(None), Answer::Nothing),
    ];
    for version in [1, 2] {
        all.extend([
            (Ask::Destination(version, "10.1.2.3:443"), open()),
            (Ask::Destination(version, "10.1.2.4:443"), Answer::Nothing),
            (Ask::Destination(version, "10.1.2.4:80"), open()),
        ]);
    }
    for listener in [Listener::Node, Listener::Vpn] {
        let connect = |value: &str| Ask::Connect(listener, "Reversed-VPN", value.to_owned());
        all.push((connect("us"), open()));
        all.push((connect("others"), Answer::Status(403, None)));
    }
    all
}

fn cluster(name: &str, endpoint: SocketAddr) -> ClusterSpec {
    let mut spec = ClusterSpec::new(name);
    spec.endpoints = vec![EndpointSpec::new(endpoint.to_string().parse().unwrap())];
    spec
}

fn ours(dir: &TempDir, server: SocketAddr) -> (Program, Ports) {
    let listener = |name: &str, protocol: &str| json!({ "name": name, "address": "127.0.0.1:0", "protocol": protocol });
    let config = json!({
        "workers": 1,
        "probes": { "address": "127.0.0.1:0" },
        "admin": { "address": "127.0.0.1:0" },
        "listeners": [
            listener("tls", "tls"),
            listener("node", "proxy-or-connect"),
            listener("vpn", "connect"),
        ],
        "routing": { "xds": { "server": format!("http://{server}"), "node": "ours" } },
    });
    let binary = command::sibling(
        env!("CARGO_BIN_EXE_netpol-controller"),
        "sni-proxy",
        "sni-proxy",
    )
    .unwrap();
    let mut program = Program::start(Place::Here, dir.path(), "gateway", &binary, &config);
    program.wait_ready();
    let ports = program.ports();
    (program, ports)
}

#[test]
fn both_gateways_refuse_the_same_clients() {
    announce("envoy");
    let dir = TempDir::new("sources").unwrap();
    let authority = Authority::new("sources").unwrap();
    let names = [
        "us.example.com",
        "others.example.com",
        "any.example.com",
        "example.org",
    ];
    let identity = authority
        .server(&[&names[..], &[INNER, "127.0.0.1"]].concat())
        .unwrap();
    let open = ApiServer::on_loopback("open", &identity).unwrap();
    let closed = ApiServer::on_loopback("closed", &identity).unwrap();
    let params = control::gateway();
    let clusters = [cluster(OPEN, open.addr()), cluster(CLOSED, closed.addr())];
    let routes = routes();
    let (parts, groups) = (xds::parts("test", &routes, &params), [&routes[..]]);
    let whole = xds::whole(&params, groups.into_iter());
    assert_eq!(parts.withheld, Vec::<String>::new());
    assert_eq!(whole.withheld, Vec::<String>::new());
    let mut resources: Vec<_> = clusters.iter().flat_map(xds::cluster).collect();
    resources.extend(xds::base(&params));
    resources.extend(parts.resources);
    resources.extend(whole.resources);
    let control = Control::start(resources, None);
    let (_ours, own) = ours(&dir, control.addr);
    let bootstrap = crate::envoy::bootstrap("DELTA_GRPC", "default", control.addr, None);
    let envoy = Envoy::start_with(Place::Here, dir.path(), "envoy", bootstrap);
    let envoy = envoy.unwrap_or_else(|error| panic!("{error:#}"));
    let envoys = Ports {
        tls: loopback(params.tls),
        node: loopback(params.node),
        vpn: loopback(params.vpn),
    };
    wait::until("Envoy to listen", LIMIT, || {
        let listening = listeners(&envoy);
        ["tls::", "node::", "vpn::"]
            .iter()
            .all(|name| listening.contains(name))
    })
    .unwrap();
    for (request, wanted) in requests() {
        let [ours, envoys] = [&own, &envoys].map(|ports| ask(ports, authority.pem(), &request));
        assert_eq!((&ours, &envoys), (&wanted, &wanted), "{request}");
    }
    assert_eq!(closed.accepted(), 0);
    assert_eq!(control.refused(), Vec::<String>::new());
}

//! One world with every program in it, and every expression asked of what they expose.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use monitoring::{Matcher, Selector, Target, panels, rules, selectors};
use serde_json::{Value, json};
use testkit::http;
use testkit::netns::Place;
use testkit::peers::prometheus::Prometheus;
use testkit::tempdir::TempDir;
use testkit::tunnel_world::{POD, PROXY_PORT, Params, Part, World};
use testkit::wait;

use crate::controller::Controller;
use crate::egress::Egress;
use crate::forward::{self, Stop, StopAtEnd};
use crate::gateways::{Gateways, Node};
use crate::programs::{LIMIT, tunnel};

/// Series that there are only once something has gone wrong that is not made to go wrong here. That
/// they have these labels is what the tables of metrics say.
const ONLY_AFTER_FAILURES: [&str; 2] = [
    "rhizome_apiserver_proxy_notrack_failures_total", // a kernel without nf_tables
    "rhizome_netpol_watch_errors_total",              // an API server that breaks off
];

/// The first of these is in an API server's pod.
const SIDECAR: &str = "konnectivity-server";

#[test]
fn expressions_use_exposed_series() {
    let dir = TempDir::new("monitoring").unwrap();
    let mut world =
        World::lay(tunnel(), Params::default()).unwrap_or_else(|error| panic!("{error:#}"));
    let egress = Egress::start(&dir);
    let gateways = Gateways::start(&dir);
    let controller = Controller::start(&dir);
    let node = Node::start(&dir);
    have_a_client_refused(&mut world);
    world.start_part(Part::Server(0)).unwrap();
    for part in world.parts() {
        world
            .wait_ready(part)
            .unwrap_or_else(|error| panic!("{error:#}"));
    }
    let (world, stop) = (world, Stop::default());
    let _echo = world.echo(&format!("{POD}:7")).unwrap();
    std::thread::scope(|scope| {
        let _stop = StopAtEnd(&stop);
        let inside = |part, port: u16| {
            let target = SocketAddr::from(([127, 0, 0, 1], port));
            forward::into(scope, &stop, world.namespace(part), target)
        };
        let on_the_node = forward::into(scope, &stop, &node.namespace, node.probes);
        let targets = [
            ("sni-proxy", "rhizome-gateway", gateways.gateway.probes),
            ("sni-proxy", "rhizome-gateway", controller.gateway.probes),
            ("sni-proxy", "rhizome-gateway", inside(Part::Gateway, 15021)),
            ("apiserver-proxy", "kube-system", gateways.node.probes),
            ("apiserver-proxy", "kube-system", on_the_node),
            ("netpol-controller", "garden", controller.controller.probes),
            (
                "vpn-server",
                "shoot--foo--bar",
                inside(Part::Server(0), 15000),
            ),
            ("vpn-client", "kube-system", inside(Part::Client(0), 8080)),
            (
                "konnectivity-server",
                "shoot--foo--bar",
                egress.server_probes,
            ),
            (
                "konnectivity-server",
                "shoot--foo--bar",
                egress.registry_probes,
            ),
            ("konnectivity-agent", "kube-system", egress.agent_probes),
        ];
        let prometheus = Prometheus::start(Place::Here, dir.path(), &config(&dir, &targets));
        let prometheus = prometheus.unwrap_or_else(|error| panic!("{error:#}"));
        scraped(&prometheus, targets.len());
        traffic(&world, &gateways, &controller, &egress);
        wait_counted(&prometheus);
        rules_are_evaluated(&prometheus);
        selectors_find_series(&prometheus);
        panels_show_something(&prometheus);
    });
}

/// The configuration of a Prometheus that finds these programs, namespaces and addresses as pods, and
/// evaluates the rules that ship.
fn config(dir: &TempDir, targets: &[(&str, &str, SocketAddr)]) -> String {
    // The first gateway as one of the overlay `node-handover`, whose pods have a container without ports.
    let is_gateway = |(_, (program, ..)): &(_, &(&str, &str, SocketAddr))| *program == "sni-proxy";
    let first = targets.iter().enumerate().find(is_gateway);
    let (first, (program, namespace, portless)) = first.unwrap();
    let of_first = |begins| {
        let name = format!("{program}-{first}");
        let address = portless.ip().to_string();
        let mut target = Target::container(namespace, &name, program, begins, &address);
        target.labels.insert("pod_ip", address);
        target
    };
    let others = targets.iter().enumerate().filter(|(at, _)| *at != first);
    let sidecar = targets.iter().position(|(program, ..)| *program == SIDECAR);
    let mut all: Vec<Target> = others
        .map(|(at, (program, namespace, addr))| {
            let (name, port) = (format!("{program}-{at}"), ("probes", addr.port()));
            let mut target = Target::pod(namespace, &name, program, port, &addr.to_string());
            if Some(at) == sidecar {
                target.move_to_api_server();
            }
            target
        })
        .collect();
    all.extend([of_first(false), of_first(true)]);
    let port = format!("$1:{}", portless.port());
    let replaced = [("$1:15021", port.as_str())];
    let config = monitoring::scrape_config("seed.yaml", &all, dir.path(), &replaced);
    let mut config = config.unwrap();
    let rules = monitoring::root().join("rules/*.yaml");
    config["rule_files"] = json!([rules]);
    config.to_string()
}

/// Waits until every target answers.
fn scraped(prometheus: &Prometheus<'_>, count: usize) {
    let up = || {
        let targets = prometheus.targets().unwrap_or_default();
        targets.len() == count && targets.iter().all(|own| own["health"] == "up")
    };
    if let Err(error) = wait::until("every target to be scraped", LIMIT, up) {
        panic!("{error:#}: {:#?}", prometheus.targets());
    }
}

/// Has the gateway refuse the tunnel client, for want of a route, until it has said so. The client
/// goes on trying and so comes in when there is one.
fn have_a_client_refused(world: &mut World) {
    world
        .dir
        .replace("routes.yaml", "clusters: []\nroutes: []\n")
        .unwrap();
    let parts = [Part::Gateway, Part::Client(0)];
    for part in parts {
        world.start_part(part).unwrap();
    }
    let refused = || {
        let name = "rhizome_vpn_client_connect_refusals_total";
        world
            .metric(Part::Client(0), name, &[])
            .is_some_and(|count| count > 0.0)
    };
    wait::until("the client to be refused", LIMIT, refused).unwrap();
    world.write_files().unwrap();
}

/// Has every program do what it is for.
fn traffic(world: &World, gateways: &Gateways, controller: &Controller, egress: &Egress) {
    gateways.use_them();
    egress.use_it();
    controller.use_it();
    let mut opened = world.dial(0, &format!("{POD}:7")).unwrap();
    assert_eq!(opened.exchange(b"hello").unwrap(), b"hello");
    // No listener there.
    assert!(world.dial(0, &format!("{POD}:8")).is_err());
    // An API server without a certificate.
    let proxy = SocketAddr::new(world.network.addresses.server(0), PROXY_PORT);
    let stranger = http::Target::tls(proxy, world.credentials.authority.pem());
    let asked = world.network.api_server.run(|| http::get(&stranger, "/"));
    assert!(asked.unwrap().is_err());
}

/// Waits until Prometheus has seen what the traffic counted, twice, so that there are rates of it.
fn wait_counted(prometheus: &Prometheus<'_>) {
    let expression = "count_over_time(rhizome_netpol_writes_total[5m]) > 2 and on () \
                      count_over_time(rhizome_netpol_write_errors_total[5m]) > 2 and on () \
                      count_over_time(rhizome_vpn_proxy_answers_total{status!=\"200\"}[5m]) > 2";
    let counted = || {
        prometheus
            .query(expression)
            .is_ok_and(|found| !found.is_empty())
    };
    if let Err(error) = wait::until("the traffic to be scraped", LIMIT, counted) {
        panic!("{error:#}: {:?}", prometheus.query(expression));
    }
}

fn rules_are_evaluated(prometheus: &Prometheus<'_>) {
    let all = rules().unwrap().len();
    let evaluated = || {
        let rules = prometheus.rules().unwrap_or_default();
        rules.len() == all && rules.iter().all(|rule| rule["health"] == "ok")
    };
    if let Err(error) = wait::until("every rule to be evaluated", LIMIT, evaluated) {
        panic!("{error:#}: {:#?}", prometheus.rules());
    }
    // A rule that was evaluated before the traffic was scraped is well too, and has found nothing.
    let silent = || {
        let records = rules().unwrap().into_iter().filter_map(|rule| rule.record);
        let found = records.map(|record| (prometheus.query(&record), record));
        let silent = found.filter(|(found, _)| !found.as_ref().is_ok_and(|own| !own.is_empty()));
        silent.collect::<Vec<_>>()
    };
    if let Err(error) = wait::until("every rule to record", LIMIT, || silent().is_empty()) {
        panic!("{error:#}: these record nothing: {:?}", silent());
    }
    let critical = || {
        let rules = prometheus.rules().unwrap_or_default().into_iter();
        let active = |rule: &Value| rule["alerts"].as_array().is_some_and(|own| !own.is_empty());
        let critical = rules.filter(|rule| rule["labels"]["severity"] == "critical");
        let names = critical.filter(active).map(|rule| rule["name"].clone());
        names.collect::<Vec<_>>()
    };
    // What is made to go wrong, and the server of several clusters has no agent; what else is critical for a
    // moment has to end.
    let expected = ["RhizomePolicyWritesFailing", "RhizomeKonnectivityNoAgents"];
    if let Err(error) = wait::until("the two alerts", LIMIT, || critical() == expected) {
        panic!("{error:#}: {:?}", critical());
    }
}

/// Every metric that is selected exists, and has every label that it is selected by.
fn selectors_find_series(prometheus: &Prometheus<'_>) {
    let of_rules = rules().unwrap().into_iter().map(|rule| rule.expr);
    let of_panels = panels()
        .unwrap()
        .into_iter()
        .map(|panel| panel.resolved("30s"));
    let all: BTreeSet<Selector> = of_rules
        .chain(of_panels)
        .flat_map(|own| selectors(&own))
        .collect();
    let is_missing = |selector: &&Selector| {
        let matchers = selector.matchers.iter();
        let labels = matchers.map(|Matcher { label, .. }| format!("{label}!=\"\""));
        let labels: BTreeSet<String> = labels.collect();
        let labels = labels.into_iter().collect::<Vec<_>>().join(",");
        let found = prometheus.series(&format!("{}{{{labels}}}", selector.name));
        found.map_or(true, |found| found.is_empty())
    };
    let missing = || {
        let missing = all.iter().filter(is_missing);
        missing
            .map(|own| own.name.as_str())
            .collect::<BTreeSet<_>>()
    };
    let expected = BTreeSet::from(ONLY_AFTER_FAILURES);
    let all_found = wait::until("every series", LIMIT, || missing() == expected);
    assert_eq!(
        missing(),
        expected,
        "series that there are not, and that there should be: {all_found:?}"
    );
}

fn panels_show_something(prometheus: &Prometheus<'_>) {
    let empty = || {
        let mut empty = Vec::new();
        for panel in panels().unwrap() {
            let found = prometheus.query(&panel.resolved("30s"));
            if !found.as_ref().is_ok_and(|found| !found.is_empty()) {
                let (dashboard, title, expr) = (panel.dashboard, panel.title, panel.expr);
                empty.push(format!("{dashboard}: {title}: {expr}: {found:?}"));
            }
        }
        empty
    };
    if let Err(error) = wait::until("every panel to have data", LIMIT, || empty().is_empty()) {
        panic!("{error:#}:\n{}", empty().join("\n"));
    }
}

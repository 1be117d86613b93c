//! A gateway's zone, with the manifests of both sides as shipped.
//!
//! ```text
//!   EndpointSlices with zones ─▶ kube-apiserver ─▶ controller ═xDS═▶ gateway ─▶ API server in its zone
//! ```
//!
//! The slices' own controller is not there: the test writes them, the gateway's among them. This
//! kube-apiserver serves `discovery.k8s.io/v1` as a definition, in place of its own older version.

use std::net::SocketAddr;

use deploy::{Account, Objects};
use serde_json::{Value, json};
use testkit::api_server::ApiServer;
use testkit::certs::Authority;
use testkit::http::{self, Target};
use testkit::netns::Place;
use testkit::tempdir::TempDir;
use testkit::wait;

use crate::api::{Api, LIMIT};
use crate::network::Network;
use crate::objects::{self, API, Authorities, SHOOT};
use crate::world::World;
use crate::{documented, path};

const CONTROLLER: &str = "rhizome-netpol-controller";

#[test]
fn gateway_prefers_endpoints_of_its_zone() {
    let (mut network, dir) = (
        Network::with_bridges(&["seed"]),
        TempDir::new("zones").unwrap(),
    );
    for name in ["api", "controller", "gateway", "shoot-api", "other-api"] {
        network.add_to_seed(name);
    }
    let (authorities, shoot) = (
        Authorities::new().unwrap(),
        Authority::new("shoot").unwrap(),
    );
    let identity = shoot.server(&[API]).unwrap();
    let _servers = [("shoot-api", "zone a"), ("other-api", "zone b")].map(|(name, answer)| {
        let listener = Place::In(network.at(name)).bind(at(name, 443)).unwrap();
        ApiServer::start(listener, answer, &identity).unwrap()
    });
    let api = seed(&network, &dir, &authorities);
    let of_gateway = |zone| slice("istio-ingress/istio-ingressgateway", &[("gateway", zone)]);
    let of_shoot = [("shoot-api", "a"), ("other-api", "b")];
    let of_shoot = slice(&format!("{SHOOT}/kube-apiserver"), &of_shoot);
    api.apply(&[of_gateway("a"), of_shoot]);
    let _world = start(&network, &dir, &authorities, &api);
    let target = Target::tls(at("gateway", 9443), shoot.pem()).server_name(API);
    let answer = || {
        let asked = network.at("api").run(|| http::get(&target, "/version"));
        asked.unwrap().unwrap().json().unwrap()["shoot"].clone()
    };
    for zone in ["a", "b"] {
        // The gateway's pod is in another zone than the controller had told.
        api.apply(&[of_gateway(zone)]);
        let own = format!("zone {zone}");
        wait::until(&own, LIMIT, || answer() == own).unwrap();
        let answers: Vec<_> = (0..8).map(|_| answer()).collect();
        assert!(answers.iter().all(|answer| *answer == own), "{answers:?}");
    }
}

fn at(name: &str, port: u16) -> SocketAddr {
    format!("{}:{port}", Network::ip(name)).parse().unwrap()
}

/// Starts the API server, with what is shipped and what Gardener writes.
fn seed<'n>(network: &'n Network, dir: &TempDir, authorities: &Authorities) -> Api<'n> {
    let selector = path::selector(dir, &objects::provision(dir, |_| {}), authorities);
    let api = Api::start(
        network.at("api"),
        dir,
        at("api", 6443),
        (&selector.0, &selector.1),
        &[],
        "unaudited",
        &["--runtime-config=discovery.k8s.io/v1beta1=false"],
    );
    let definitions = Objects::read("tests/data/definitions.yaml").unwrap();
    let mut definitions: Vec<Value> = definitions.into_iter().collect();
    let any = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    definitions.push(json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {
            "name": "endpointslices.discovery.k8s.io",
            "annotations": { "api-approved.kubernetes.io": "unapproved, for a test" },
        },
        "spec": {
            "group": "discovery.k8s.io", "scope": "Namespaced",
            "names": { "kind": "EndpointSlice", "plural": "endpointslices", "singular": "endpointslice" },
            "versions": [{
                "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": any },
            }],
        },
    }));
    api.apply(&objects::namespaces());
    api.apply(&definitions);
    path::wait_served(&api, &definitions);
    let shipped = ["seed/controller", "seed/gateway/base"].map(|own| Objects::build(own).unwrap());
    let known = shipped.into_iter().flatten().filter_map(|object| {
        documented::check(object, |version, kind| api.serves(version, kind)).object
    });
    api.apply(&known.collect::<Vec<_>>());
    api.apply(&objects::api_server());
    api
}

/// Starts the controller, then the gateway, which is ready with its routes.
fn start(network: &Network, dir: &TempDir, authorities: &Authorities, api: &Api<'_>) -> World {
    let built = |directory: &str| {
        let mut built = Objects::build(directory).unwrap();
        built.extend(authorities.of_gateways().unwrap());
        built
    };
    let account = Account {
        api_server: api.server.addr(),
        authority: api.server.authority_pem().to_owned(),
        token: api.token("garden", CONTROLLER),
    };
    let controller = Network::ip("controller");
    let hosts =
        format!("127.0.0.1 localhost\n{controller} {CONTROLLER}.garden.svc.cluster.local\n");
    let mut world = World::new(dir.join("pods"), hosts);
    for (place, directory, name, account) in [
        ("controller", "seed/controller", CONTROLLER, Some(account)),
        ("gateway", "seed/gateway/base", "sni-proxy", None),
    ] {
        let pod = ("Deployment", name, place);
        world.start(network.at(place), pod, &built(directory), account);
    }
    world
}

/// An EndpointSlice of a Service's only port, with machines of the seed and their zones.
fn slice(service: &str, endpoints: &[(&str, &str)]) -> Value {
    let (namespace, name) = service.split_once('/').unwrap();
    let (port, number) = if name == "kube-apiserver" {
        (name, 443)
    } else {
        ("tcp", 9443)
    };
    let endpoint =
        |(name, zone): &(&str, &str)| json!({ "addresses": [Network::ip(name)], "zone": zone });
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {
            "name": name, "namespace": namespace, "labels": { "kubernetes.io/service-name": name },
        },
        "endpoints": endpoints.iter().map(endpoint).collect::<Vec<_>>(),
        "ports": [{ "name": port, "port": number, "protocol": "TCP" }],
    })
}

//! What is there before any pod: the API server and its objects, Secrets, and the destinations.
//!
//! ```text
//!   manifests, and the same for another shoot ─▶ API server ─▶ controller
//!   provision, authorities ─▶ Secrets ─▶ pods
//!   stand-ins: an API server for each shoot, a kubelet in each, which say who they are
//! ```
//!
//! The other shoot has the same networks, and within them the same addresses: an answer of the wrong one
//! is told by its name alone.

use std::net::SocketAddr;

use deploy::{Account, Objects};
use serde_json::Value;
use testkit::certs::{Authority, Identity};
use testkit::kubelet::Kubelet;
use testkit::netns::Place;
use testkit::tempdir::TempDir;

use crate::api::Api;
use crate::network::{NODE, Network};
use crate::objects::{self, ADVERTISED, API, Authorities, SHOOT};
use crate::{documented, path};

/// The other shoot, the name of its API server, and the address of that on its nodes.
pub(crate) const OTHER: &str = "shoot--foo--baz";
pub(crate) const OTHER_API: &str = "api.baz.foo.example.com";
pub(crate) const OTHER_ADVERTISED: &str = "10.1.2.4";

/// ClusterIPs.
pub(crate) const VPN: &str = "10.0.128.10";
pub(crate) const KONNECTIVITY: &str = "10.0.128.11";
pub(crate) const CONTROLLER: &str = "10.0.128.12";

/// What goes into the API server, besides what the other shoot has.
const COMPONENTS: [&str; 4] = [
    "seed/controller",
    "seed/gateway/base",
    "control-plane/vpn-server",
    "control-plane/konnectivity-server",
];

/// Everything but the pods.
pub(crate) struct Seed<'n> {
    pub(crate) api: Api<'n>,
    pub(crate) authorities: Authorities,
    /// Of the two shoots' API servers.
    pub(crate) shoot: Authority,
    pub(crate) other: Authority,
    secrets: Vec<Value>,
    others: Vec<Value>,
    _servers: Vec<Kubelet>,
    _dirs: [TempDir; 2],
}

impl<'n> Seed<'n> {
    pub(crate) fn new(network: &'n Network, dirs: [TempDir; 2]) -> Self {
        let authorities = Authorities::new().unwrap();
        let (mut secrets, annotated) = split(objects::provision(&dirs[0], |_| {}));
        let (others, annotated_others) = split(objects::provision(&dirs[1], |wanted| {
            *wanted = of_other(wanted);
            wanted["routeIds"] = serde_json::json!([19, 20]);
        }));
        let selector = path::selector(&dirs[0], &secrets, &authorities);
        secrets.extend(authorities.of_gateways().unwrap());
        secrets.extend(authorities.of_konnectivity(SHOOT).unwrap());
        let address: SocketAddr = format!("{}:6443", Network::ip("api")).parse().unwrap();
        let api = Api::start(
            network.at("api"),
            &dirs[0],
            address,
            (&selector.0, &selector.1),
            &[(objects::VPN_SERVICE, VPN.to_owned())],
            "unaudited",
            &[],
        );
        let (shoot, other) = (Authority::new("shoot"), Authority::new("other"));
        let mut seed = Self {
            api,
            authorities,
            shoot: shoot.unwrap(),
            other: other.unwrap(),
            secrets,
            others,
            _servers: Vec::new(),
            _dirs: dirs,
        };
        seed.fill(&annotated, &annotated_others);
        seed.serve(network);
        seed
    }

    /// Applies everything, as an operator, Gardener and `vpn-provision` would.
    fn fill(&self, annotated: &[Value], of_others: &[Value]) {
        let api = &self.api;
        let mut namespaces = objects::namespaces();
        namespaces.extend(objects::namespaces().iter().map(of_other));
        api.apply(&namespaces);
        let definitions = Objects::read("tests/data/definitions.yaml").unwrap();
        let definitions: Vec<Value> = definitions.into_iter().collect();
        api.apply(&definitions);
        path::wait_served(api, &definitions);
        let mut all = Vec::new();
        for directory in COMPONENTS {
            all.extend(Objects::build(directory).unwrap());
        }
        let other = Objects::build("control-plane/vpn-server").unwrap();
        all.extend(other.iter().map(of_other));
        let known = all.into_iter().filter_map(|object| {
            documented::check(object, |version, kind| api.serves(version, kind)).object
        });
        api.apply(&known.collect::<Vec<_>>());
        api.apply_as("vpn-provision", annotated);
        api.apply_as("vpn-provision", of_others);
        let mut routed = objects::api_server();
        routed.extend(objects::api_server().iter().map(of_other));
        let endpoints = [(0, "shoot-api"), (routed.len() / 2, "other-api")]
            .map(|(service, place)| objects::endpoints(&routed[service], &Network::ip(place)));
        api.apply(&routed);
        api.apply(&endpoints);
    }

    /// Starts the destinations. What stands for a shoot's API server says its name as kubelets do.
    fn serve(&mut self, network: &Network) {
        let mut start = |place: &str, at: String, name: &str, identity: &Identity| {
            let listener = Place::In(network.at(place)).bind(at.parse().unwrap());
            let server = Kubelet::start(listener.unwrap(), name, identity).unwrap();
            let address = server.addr();
            self._servers.push(server);
            address
        };
        let at = |place: &str| format!("{}:443", Network::ip(place));
        let own = self.shoot.server(&[API, ADVERTISED]).unwrap();
        start("shoot-api", at("shoot-api"), SHOOT, &own);
        let own = self.other.server(&[OTHER_API, OTHER_ADVERTISED]).unwrap();
        start("other-api", at("other-api"), OTHER, &own);
        let kubelet = format!("{NODE}:10250");
        let own = self.authorities.kubelets.server(&[NODE]).unwrap();
        start("other-pod", kubelet.clone(), "node-b", &own);
        let address = start("pod", kubelet, "node-a", &own);
        let place = Place::In(network.at("api"));
        self.api
            .server
            .create_node(place, "node-a", address)
            .unwrap();
    }

    /// Builds a component, with all Secrets.
    pub(crate) fn built(&self, directory: &str) -> Objects {
        let mut objects = Objects::build(directory).unwrap();
        objects.extend(self.secrets.iter().cloned());
        objects
    }

    /// Builds a component for the other shoot.
    pub(crate) fn built_for_other(&self, directory: &str) -> Objects {
        let mut objects = Objects::default();
        objects.extend(Objects::build(directory).unwrap().iter().map(of_other));
        objects.extend(self.others.iter().cloned());
        objects
    }

    /// Returns the controller's account.
    pub(crate) fn account(&self) -> Account {
        Account {
            api_server: self.api.server.addr(),
            authority: self.api.server.authority_pem().to_owned(),
            token: self.api.token("garden", "rhizome-netpol-controller"),
        }
    }

    /// Returns whom the control plane of the other shoot shows its tunnel, and the tunnel's authority.
    pub(crate) fn client_of_other(&self) -> (Identity, String) {
        let mut secrets = Objects::default();
        secrets.extend(self.others.iter().cloned());
        let files = secrets.files("Secret", "vpn-seed-server-client").unwrap();
        let identity = Identity {
            cert_pem: files["tls.crt"].clone(),
            key_pem: files["tls.key"].clone(),
        };
        (identity, files["ca.crt"].clone())
    }
}

/// Returns Secrets, and what else `provision` writes.
fn split(provisioned: Vec<Value>) -> (Vec<Value>, Vec<Value>) {
    let all = provisioned.into_iter();
    all.partition(|own| own["kind"] == "Secret")
}

/// Returns what is the shoot's as it is for the other one: another namespace, other names.
pub(crate) fn of_other(object: &Value) -> Value {
    let text = object
        .to_string()
        .replace(SHOOT, OTHER)
        .replace("bar.foo.example.com", "baz.foo.example.com")
        .replace(ADVERTISED, OTHER_ADVERTISED);
    serde_json::from_str(&text).unwrap()
}

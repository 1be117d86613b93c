//! A seed in a namespace: an API server with the objects of some shoots, the shoots' own API
//! servers, the controller.

use std::cell::RefCell;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use testkit::api_server::ApiServer;
use testkit::certs::{Authority, IdentityFiles};
use testkit::http::{self, Target};
use testkit::netns::{Namespace, Place};
use testkit::peers::envoy::Envoy;
use testkit::peers::kube::{KubeApiServer, KubeParams};
use testkit::tempdir::TempDir;
use testkit::{command, wait};

use crate::ask::{INNER, Ports};
use crate::objects::{self, PORT};
use crate::program::{LIMIT, Program};

/// The gateways of the controller's configuration, with the name in their certificates.
const GATEWAYS: [(&str, &str); 2] = [
    ("default", "spiffe://example.com/gateway/default"),
    ("other", "spiffe://example.com/gateway/other"),
];

/// Shoots that have an API server; further ones come later.
const SHOOTS: [&str; 6] = ["a", "b", "c", "d", "e", "g"];

/// A running seed; the calling thread is in its namespace.
pub(crate) struct Seed<'n> {
    namespace: &'n Namespace,
    dir: TempDir,
    authority: Authority,
    kube: KubeApiServer,
    shoots: Vec<ApiServer>,
    /// `None` while it is stopped.
    controller: RefCell<Option<Program>>,
    xds: SocketAddr,
    tls_termination: bool,
}

/// Runs `job` in a seed with one shoot, whose API server is the seed's own and knows the authorities of clients and
/// of front proxies that `job` is given. TLS ends in its gateways; no controller runs yet.
pub(crate) fn in_terminating(
    shoot: &str,
    job: impl FnOnce(&Seed<'_>, &Authority, &Authority) + Send,
) {
    let namespace = Namespace::new("terminate").unwrap_or_else(|error| panic!("{error:#}"));
    let address = format!("{}/32", objects::ip_of(shoot));
    namespace.add_address("lo", &address).unwrap();
    let run = || {
        let dir = TempDir::new("terminate").unwrap();
        let [clients, front] = ["clients", "front"].map(|name| Authority::new(name).unwrap());
        let file = |authority: &Authority, name: &str| {
            let path = authority.write(&dir.join(name)).unwrap();
            path.display().to_string()
        };
        let address = SocketAddr::new(objects::ip_of(shoot).parse().unwrap(), PORT);
        let names = [
            &*objects::name_of(shoot),
            "kubernetes.default.svc.cluster.local",
        ];
        let mut params = KubeParams::new(address, &names);
        params.arguments = vec![
            format!("--client-ca-file={}", file(&clients, "clients.crt")),
            format!(
                "--requestheader-client-ca-file={}",
                file(&front, "front.crt")
            ),
            "--requestheader-allowed-names=system:istio-gateway".to_owned(),
            "--requestheader-username-headers=X-Remote-User".to_owned(),
            "--requestheader-group-headers=X-Remote-Group".to_owned(),
            "--requestheader-extra-headers-prefix=X-Remote-Extra-".to_owned(),
        ];
        let mut seed = Seed::new(&namespace, dir, &params);
        seed.tls_termination = true;
        let mut all = vec![objects::namespace("istio-ingress")];
        all.extend(crate::terminate::shoot());
        seed.apply("all", &all);
        job(&seed, &clients, &front);
    };
    namespace.run(run).unwrap();
}

/// Runs `job` in a seed of its own.
pub(crate) fn in_namespace(job: impl FnOnce(&Seed<'_>) + Send) {
    let namespace = Namespace::new("routes").unwrap_or_else(|error| panic!("{error:#}"));
    for shoot in SHOOTS {
        let address = format!("{}/32", objects::ip_of(shoot));
        namespace.add_address("lo", &address).unwrap();
    }
    namespace.run(|| job(&Seed::start(&namespace))).unwrap();
}

impl<'n> Seed<'n> {
    fn start(namespace: &'n Namespace) -> Self {
        let dir = TempDir::new("routes").unwrap();
        let params = KubeParams::new((Ipv4Addr::LOCALHOST, 0).into(), &[]);
        let mut seed = Self::new(namespace, dir, &params);
        let shoots = SHOOTS
            .iter()
            .map(|shoot| api_server(&seed.authority, shoot));
        seed.shoots = shoots.collect();
        seed.apply("all", &objects::all());
        seed.start_controller();
        seed
    }

    /// Starts an API server that knows the kinds of objects, and nothing else.
    fn new(namespace: &'n Namespace, dir: TempDir, params: &KubeParams) -> Self {
        let authority = Authority::new("routes").unwrap();
        authority.write(&dir.join("ca.crt")).unwrap();
        let controller = authority.server(&["127.0.0.1"]).unwrap();
        controller.write(dir.path(), "controller").unwrap();
        for (name, uri) in GATEWAYS {
            let own = authority.client(name, &[], &[uri]).unwrap();
            own.write(dir.path(), name).unwrap();
        }
        let kube = KubeApiServer::start(Place::In(namespace), &dir.join("kube"), params);
        let kube = kube.unwrap_or_else(|error| panic!("{error:#}"));
        kube.write_kubeconfig(&dir.join("kubeconfig"), kube.addr(), None)
            .unwrap();
        let seed = Self {
            shoots: Vec::new(),
            namespace,
            authority,
            kube,
            controller: RefCell::default(),
            xds: free(),
            tls_termination: false,
            dir,
        };
        seed.apply("definitions", &objects::definitions());
        seed.wait_served();
        seed
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn token(&self) -> &'static str {
        self.kube.token()
    }

    pub(crate) fn kube_authority(&self) -> &str {
        self.kube.authority_pem()
    }

    /// Returns all that the controller shows and logs.
    pub(crate) fn shown(&self) -> String {
        self.controller.borrow().as_ref().unwrap().shown()
    }

    /// Returns the directory of a gateway's cache.
    pub(crate) fn cache(&self, identity: &str, wanted: &str) -> PathBuf {
        self.dir.join(format!("gateway-{identity}-{wanted}.cache"))
    }

    fn place(&self) -> Place<'n> {
        Place::In(self.namespace)
    }

    pub(crate) fn authority_pem(&self) -> &str {
        self.authority.pem()
    }

    /// Returns how many connections a shoot's API server has taken.
    pub(crate) fn accepted(&self, shoot: &str) -> usize {
        let place = SHOOTS.iter().position(|own| *own == shoot).unwrap();
        self.shoots[place].accepted()
    }

    /// Applies objects as a person would.
    pub(crate) fn apply(&self, name: &str, objects: &[Value]) {
        self.kubectl("apply", name, objects);
    }

    pub(crate) fn delete(&self, name: &str, objects: &[Value]) {
        self.kubectl("delete", name, objects);
    }

    fn kubectl(&self, verb: &str, name: &str, objects: &[Value]) {
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects });
        let file = self
            .dir
            .write(format!("{name}.json"), list.to_string())
            .unwrap();
        let mut kubectl = Command::new(command::require("kubectl").unwrap());
        kubectl.arg("--kubeconfig").arg(self.dir.join("kubeconfig"));
        kubectl.arg("--cache-dir").arg(self.dir.join("cache"));
        kubectl
            .args([verb, "--request-timeout=30s", "-f"])
            .arg(file);
        match verb {
            // Some objects go with others, Endpoints with their Service.
            "delete" => kubectl.args(["--wait=false", "--ignore-not-found"]),
            _ => kubectl.arg("--validate=false"),
        };
        command::run(&mut kubectl).unwrap_or_else(|error| panic!("{error:#}"));
    }

    /// Waits until the defined kinds are served.
    fn wait_served(&self) {
        for path in [
            "/apis/networking.istio.io/v1beta1/gateways",
            "/apis/networking.istio.io/v1beta1/virtualservices",
            "/apis/networking.istio.io/v1beta1/destinationrules",
            "/apis/networking.istio.io/v1alpha3/envoyfilters",
            "/apis/gateway.networking.k8s.io/v1/gateways",
            "/apis/gateway.networking.k8s.io/v1alpha2/tlsroutes",
        ] {
            let served = || http::get(&self.kube.target(), path).is_ok_and(|own| own.status == 200);
            wait::until(path, LIMIT, served).unwrap();
        }
    }

    /// Returns a configuration of the controller with some of the gateways.
    fn config(&self, wanted: &[&str]) -> Value {
        let gateways = GATEWAYS.into_iter();
        let gateways = gateways.filter(|(name, _)| wanted.contains(name));
        let gateways = gateways.map(|(name, uri)| {
            let other = name == "other";
            json!({
                "name": name,
                "namespace": if other { "istio-ingress--other" } else { "istio-ingress" },
                "selector": if other {
                    json!({ "istio": "other" })
                } else {
                    json!({ "app": "istio-ingressgateway", "istio": "ingressgateway" })
                },
                "clients": [uri],
            })
        });
        let xds = json!({
            "address": self.xds.to_string(),
            "ca": "ca.crt",
            "cert": "controller.crt",
            "key": "controller.key",
        });
        let gateways: Vec<Value> = gateways.collect();
        json!({
            "kubeconfig": "kubeconfig",
            "leaderElection": { "enabled": false },
            "probes": { "address": "127.0.0.1:0" },
            "admin": { "address": "127.0.0.1:0" },
            "controllers": {
                "networkPolicy": { "enabled": false },
                "routing": {
                    "enabled": true, "gateways": gateways, "xds": xds,
                    "tlsTermination": self.tls_termination,
                },
            },
        })
    }

    /// Changes the configuration file of the running controller.
    pub(crate) fn configure(&self, wanted: &[&str]) {
        let controller = self.controller.borrow();
        let path = &controller.as_ref().unwrap().config;
        fs::write(path, self.config(wanted).to_string()).unwrap();
    }

    /// Starts the controller where it was before, and waits until it knows everything.
    pub(crate) fn start_controller(&self) {
        let config = self.config(&["default", "other"]);
        let binary = Path::new(env!("CARGO_BIN_EXE_netpol-controller"));
        let dir = self.dir.path();
        let mut program = Program::start(self.place(), dir, "controller", binary, &config);
        program.wait_ready();
        self.controller.replace(Some(program));
    }

    pub(crate) fn stop_controller(&self) {
        let stopped = self.controller.take().unwrap().child.stop(LIMIT);
        assert!(stopped.unwrap().success());
    }

    /// Returns what the controller shows to operators.
    pub(crate) fn snapshot(&self) -> Value {
        self.controller.borrow().as_ref().unwrap().snapshot()
    }

    /// Returns a metric of the controller, summed over every series with `labels`.
    pub(crate) fn metric(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.controller
            .borrow()
            .as_ref()
            .unwrap()
            .metric(name, labels)
    }

    fn identity(&self, name: &str) -> IdentityFiles {
        IdentityFiles {
            cert: self.dir.join(format!("{name}.crt")),
            key: self.dir.join(format!("{name}.key")),
        }
    }

    /// Removes what an ended gateway would be ready with at once.
    pub(crate) fn remove_cache(&self, identity: &str, wanted: &str) {
        fs::remove_dir_all(self.cache(identity, wanted)).unwrap();
    }

    /// Starts our gateway, with the certificate of `identity` and for the routes of `wanted`.
    pub(crate) fn start_gateway(&self, identity: &str, wanted: &str) -> Program {
        let listener = |name: &str, protocol: &str| json!({ "name": name, "address": "127.0.0.1:0", "protocol": protocol });
        let files = self.identity(identity);
        let name = format!("gateway-{identity}-{wanted}");
        let cache = self.cache(identity, wanted);
        fs::create_dir_all(&cache).unwrap();
        let config = json!({
            "workers": 1,
            "probes": { "address": "127.0.0.1:0" },
            "admin": { "address": "127.0.0.1:0" },
            "listeners": [
                listener("tls", "tls"),
                listener("node", "proxy-or-connect"),
                listener("vpn", "connect"),
            ],
            "routing": { "xds": {
                "server": format!("https://{}", self.xds),
                "ca": self.dir.join("ca.crt"),
                "cert": files.cert,
                "key": files.key,
                "node": format!("{identity}-0"),
                "gateway": wanted,
                "cache": cache,
            } },
            "drain": { "delay": "0s", "timeout": "0s" },
        });
        let binary = command::sibling(
            env!("CARGO_BIN_EXE_netpol-controller"),
            "sni-proxy",
            "sni-proxy",
        )
        .unwrap();
        Program::start(self.place(), self.dir.path(), &name, &binary, &config)
    }

    /// Starts our gateway and waits until it has routes.
    pub(crate) fn gateway(&self, identity: &str, wanted: &str) -> Gateway {
        let mut program = self.start_gateway(identity, wanted);
        program.wait_ready();
        let ports = program.ports();
        Gateway { program, ports }
    }

    /// Starts Envoy as the gateway `default`, on the ports that the objects name.
    pub(crate) fn envoy(&self, variant: &str) -> Gateway<Envoy> {
        let own = self.identity("default");
        let ca = self.dir.join("ca.crt");
        let bootstrap = crate::envoy::bootstrap(variant, "default", self.xds, Some((&ca, &own)));
        let envoy = Envoy::start_with(self.place(), self.dir.path(), variant, bootstrap);
        let at = |port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        Gateway {
            program: envoy.unwrap_or_else(|error| panic!("{error:#}")),
            ports: Ports {
                tls: at(443),
                node: at(8443),
                vpn: at(8132),
            },
        }
    }
}

/// A running gateway and where it listens.
pub(crate) struct Gateway<P = Program> {
    pub(crate) program: P,
    pub(crate) ports: Ports,
}

/// The API server of a shoot, at the address of its endpoint.
fn api_server(authority: &Authority, shoot: &str) -> ApiServer {
    let names = [
        objects::name_of(shoot),
        format!("api.{shoot}.internal.example.com"),
        format!("*.{shoot}.wild.example.com"),
        format!("*.{shoot}.own.example.com"),
        INNER.to_owned(),
        // A catch-all that no request may reach.
        objects::name_of("f"),
        objects::name_of("unknown"),
        "a.wild.example.com".to_owned(),
        // A client without a server name asks for the address that it connects to.
        "127.0.0.1".to_owned(),
    ];
    let identity = authority.server(&names).unwrap();
    let ip: IpAddr = objects::ip_of(shoot).parse().unwrap();
    let listener = TcpListener::bind(SocketAddr::new(ip, PORT)).unwrap();
    ApiServer::start(listener, shoot, &identity).unwrap()
}

/// An unused address in this namespace, for a program that is restarted there.
fn free() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 15010).into()
}

/// The status page of Envoy that lists what it was given.
pub(crate) fn listeners(envoy: &Envoy) -> String {
    http::get(&Target::plain(envoy.admin()), "/listeners")
        .map_or_else(|_| String::new(), |own| own.text())
}

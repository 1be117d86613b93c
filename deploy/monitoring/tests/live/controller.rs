//! A real API server with a Service, the controller, and a gateway that it feeds.

use std::fs;
use std::net::SocketAddr;

use serde_json::{Value, json};
use testkit::http::Connection;
use testkit::netns::Place;
use testkit::peers::kube::{KubeApiServer, KubeParams};
use testkit::tempdir::TempDir;

use crate::programs::{Program, free};

/// The count of policies in a quota.
const NO_POLICIES: &str = "count/networkpolicies.networking.k8s.io";

/// The programs. Fields are dropped in this order.
pub(crate) struct Controller {
    pub(crate) gateway: Program,
    /// A gateway that the controller knows nothing of.
    _stranger: Program,
    pub(crate) controller: Program,
    kube: KubeApiServer,
}

impl Controller {
    pub(crate) fn start(dir: &TempDir) -> Self {
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let params = KubeParams::new(address, &[]);
        let kube = KubeApiServer::start(Place::Here, &dir.join("kube"), &params)
            .unwrap_or_else(|error| panic!("{error:#}"));
        kube.write_kubeconfig(&dir.join("kubeconfig"), kube.addr(), None)
            .unwrap();
        let xds = free();
        let config = json!({
            "kubeconfig": "kubeconfig",
            "leaderElection": { "namespace": "default" },
            "probes": { "address": "127.0.0.1:0" },
            "admin": { "address": "127.0.0.1:0" },
            "controllers": { "routing": {
                "enabled": true,
                "gateways": [{ "name": "default", "namespace": "default", "selector": { "app": "gateway" } }],
                "xds": { "address": xds.to_string() },
            } },
        });
        let mut controller = Program::start(dir.path(), "netpol-controller", "controller", &config);
        controller.wait_ready();
        let cache = dir.join("cache");
        for gateway in ["default", "stranger"] {
            fs::create_dir_all(cache.join(gateway)).unwrap();
        }
        let fed = |gateway: &str| {
            let config = json!({
                "workers": 1,
                "probes": { "address": "127.0.0.1:0" },
                "admin": { "address": "127.0.0.1:0" },
                "listeners": [{ "name": "tls", "address": "127.0.0.1:0", "protocol": "tls" }],
                "routing": { "xds": {
                    "server": format!("http://{xds}"), "node": "gateway-0", "gateway": gateway,
                    "cache": cache.join(gateway),
                } },
            });
            Program::start(dir.path(), "sni-proxy", &format!("fed-{gateway}"), &config)
        };
        let mut gateway = fed("default");
        gateway.wait_ready();
        Self {
            _stranger: fed("stranger"),
            gateway,
            controller,
            kube,
        }
    }

    /// Makes a Service that calls for policies, one that is wrong, and one whose policies the API
    /// server refuses.
    pub(crate) fn use_it(&self) {
        let quota = json!({
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": { "name": "none" },
            "spec": { "hard": { NO_POLICIES: "0" } },
        });
        self.ask(
            "POST",
            "/api/v1/namespaces",
            &json!({
                "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "full" },
            }),
        );
        let quotas = "/api/v1/namespaces/full/resourcequotas";
        let mut quota = self.ask("POST", quotas, &quota);
        // What its own controller would do.
        let figures = json!({ NO_POLICIES: "0" });
        quota["status"] = json!({ "hard": figures, "used": figures });
        self.ask("PUT", &format!("{quotas}/none/status"), &quota);
        let bad = "networking.resources.gardener.cloud/from-all-allowed-ports";
        for (namespace, name, annotations) in [
            ("default", "api", json!({})),
            ("default", "wrong", json!({ bad: "[{" })),
            ("full", "api", json!({})),
        ] {
            let path = format!("/api/v1/namespaces/{namespace}/services");
            let service = json!({
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": { "name": name, "annotations": annotations },
                "spec": { "selector": { "app": name }, "ports": [{ "port": 443, "targetPort": 8443 }] },
            });
            self.ask("POST", &path, &service);
        }
    }

    fn ask(&self, method: &str, path: &str, object: &Value) -> Value {
        let mut connection = Connection::open(&self.kube.target()).unwrap();
        let answer = connection.request(method, path, Some(&object.to_string()));
        let answer = answer.unwrap();
        assert!(answer.status < 300, "{path}: {}", answer.text());
        answer.json().unwrap()
    }
}

//! The API server, the kubelet's stand-in, and what is asked of one about the other.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;

use testkit::certs::Authority;
use testkit::command;
use testkit::http::{Connection, Response, Target};
use testkit::kubelet::Kubelet;
use testkit::netns::Place;
use testkit::peers::kube::{Egress, KubeApiServer, KubeParams};
use testkit::tempdir::TempDir;

use crate::pair::{Certificates, LIMIT, Pair, SERVICE, free, show};

/// The node whose kubelet answers, and one without a kubelet.
pub(crate) const NODE: &str = "node-0";
pub(crate) const DOWN: &str = "node-1";

/// How the API server speaks to our server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    GrpcUds,
    HttpConnectTls,
    HttpConnectUds,
}

/// An API server that knows two nodes. Fields are dropped in this order.
pub(crate) struct Cluster {
    pub(crate) server: KubeApiServer,
    pub(crate) kubelet: Kubelet,
    kubeconfig: PathBuf,
}

impl Cluster {
    /// Starts it in `dir`, with `egress` towards its nodes.
    pub(crate) fn start(dir: &TempDir, egress: &Egress) -> Self {
        let authority = Authority::new("kubelets").unwrap();
        let kubelets = authority.write(&dir.join("kubelet-ca.crt")).unwrap();
        let identity = authority.server(&["127.0.0.1"]).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let kubelet = Kubelet::start(listener, NODE, &identity).unwrap();
        let selector = dir.join("egress.json");
        egress.write(&selector).unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut params = KubeParams::new(address, &[]).kubelets(&selector, &kubelets);
        params.hosts = vec![(address.ip(), SERVICE.to_owned())];
        let server = KubeApiServer::start(Place::Here, &dir.join("kube"), &params)
            .unwrap_or_else(|error| panic!("{error:#}"));
        for (name, kubelet) in [(NODE, kubelet.addr()), (DOWN, free())] {
            server.create_node(Place::Here, name, kubelet).unwrap();
        }
        let kubeconfig = dir.join("kubeconfig");
        server
            .write_kubeconfig(&kubeconfig, server.addr(), None)
            .unwrap();
        Self {
            server,
            kubelet,
            kubeconfig,
        }
    }

    pub(crate) fn target(&self) -> Target {
        self.server.target().timeout(LIMIT)
    }

    pub(crate) fn connection(&self) -> Connection {
        Connection::open(&self.target()).unwrap()
    }

    /// Asks the kubelet for `path` through the API server.
    pub(crate) fn get(&self, path: &str) -> Response {
        self.connection().get(&proxied(NODE, path)).unwrap()
    }

    /// Tells whether the kubelet answers that it is well.
    pub(crate) fn is_healthy(&self) -> bool {
        let answer = testkit::http::get(&self.target(), &proxied(NODE, "healthz"));
        answer.is_ok_and(|answer| answer.text() == "ok")
    }

    /// Prepares `kubectl get --raw` for what the kubelet has at `path`.
    pub(crate) fn kubectl(&self, path: &str) -> Command {
        let mut kubectl = Command::new(command::require("kubectl").unwrap());
        kubectl.arg("--kubeconfig").arg(&self.kubeconfig);
        kubectl.args(["get", "--raw", &proxied(NODE, path)]);
        for proxy in ["http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"] {
            kubectl.env_remove(proxy);
        }
        kubectl
    }
}

/// All of it. Fields are dropped in this order.
pub(crate) struct Stage {
    pub(crate) cluster: Cluster,
    pub(crate) pair: Pair,
    pub(crate) dir: TempDir,
}

impl Stage {
    pub(crate) fn new(transport: Transport) -> Self {
        let dir = TempDir::new("kn-peers").unwrap();
        let certificates = Certificates::write(&dir, &[]);
        let (frontends, egress) = frontends(transport, &dir, &certificates);
        let pair = Pair::start(&dir, &certificates, &frontends);
        let cluster = Cluster::start(&dir, &egress);
        Self { cluster, pair, dir }
    }
}

/// Returns the server's flags for API servers, and the API server's way to it.
fn frontends(
    transport: Transport,
    dir: &TempDir,
    certificates: &Certificates,
) -> (Vec<String>, Egress) {
    let socket = dir.join("kn.sock");
    let uds = |mode: &str, socket: &Path| {
        let port = "--server-port=0".to_owned();
        vec![format!("--mode={mode}"), port, show("uds-name", socket)]
    };
    match transport {
        Transport::GrpcUds => (uds("grpc", &socket), Egress::GrpcUds(socket)),
        Transport::HttpConnectTls => {
            let addr = free();
            let flags = vec![
                "--mode=http-connect".to_owned(),
                format!("--server-bind-address={}", addr.ip()),
                format!("--server-port={}", addr.port()),
                show("server-ca-cert", &certificates.authority),
                show("server-cert", &certificates.server.cert),
                show("server-key", &certificates.server.key),
            ];
            let egress = Egress::HttpConnectTls {
                server: format!("{SERVICE}:{}", addr.port()),
                authority: certificates.authority.clone(),
                identity: certificates.frontend.clone(),
            };
            (flags, egress)
        }
        Transport::HttpConnectUds => (uds("http-connect", &socket), Egress::HttpConnectUds(socket)),
    }
}

/// Returns the API server's path for `path` at a node.
pub(crate) fn proxied(node: &str, path: &str) -> String {
    format!("/api/v1/nodes/{node}/proxy/{path}")
}

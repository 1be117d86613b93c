//! A konnectivity server and an agent, and connections through both.

use std::net::SocketAddr;
use std::process::Command;

use testkit::certs::{Authority, Identity};
use testkit::http::{self, Connection, Proxy, Target};
use testkit::metrics::Metrics;
use testkit::peers::kube::Egress as Way;
use testkit::process::ChildGuard;
use testkit::tempdir::TempDir;
use testkit::upstream::{Behavior, Upstream};

use crate::programs::{LIMIT, binary, free};

/// The Service in front of the server, by whose name API servers ask.
pub(crate) const SERVICE: &str = "konnectivity-server";

/// The programs, and the server behind them. Fields are dropped in this order.
pub(crate) struct Egress {
    _agent: ChildGuard,
    _server: ChildGuard,
    _registry: ChildGuard,
    pub(crate) registry_probes: SocketAddr,
    pub(crate) agent_probes: SocketAddr,
    pub(crate) server_probes: SocketAddr,
    pub(crate) frontends: SocketAddr,
    pub(crate) authority: Authority,
    api_server: Identity,
    upstream: Upstream,
}

impl Egress {
    pub(crate) fn start(dir: &TempDir) -> Self {
        let authority = Authority::new("konnectivity").unwrap();
        let ca = authority.write(&dir.join("konnectivity-ca.crt")).unwrap();
        let write = |identity: &Identity, name| identity.write(dir.path(), name).unwrap();
        let server = write(
            &authority.server(&["127.0.0.1", SERVICE]).unwrap(),
            "kn-server",
        );
        let agent = write(&authority.client("agent", &[], &[]).unwrap(), "kn-agent");
        let [frontends, agents, server_probes, agent_probes] = [(); 4].map(|()| free());
        let path = |flag: &str, path: &std::path::Path| format!("--{flag}={}", path.display());
        let arguments = [
            "--mode=http-connect".to_owned(),
            "--server-bind-address=127.0.0.1".to_owned(),
            format!("--server-port={}", frontends.port()),
            path("server-ca-cert", &ca),
            path("server-cert", &server.cert),
            path("server-key", &server.key),
            "--agent-bind-address=127.0.0.1".to_owned(),
            format!("--agent-port={}", agents.port()),
            path("cluster-ca-cert", &ca),
            path("cluster-cert", &server.cert),
            path("cluster-key", &server.key),
            "--health-bind-address=127.0.0.1".to_owned(),
            format!("--health-port={}", server_probes.port()),
            "--admin-port=0".to_owned(),
        ];
        let server = start(dir, "konnectivity-server", &arguments, server_probes);
        let arguments = [
            path("ca-cert", &ca),
            path("agent-cert", &agent.cert),
            path("agent-key", &agent.key),
            "--proxy-server-host=127.0.0.1".to_owned(),
            format!("--proxy-server-port={}", agents.port()),
            "--health-server-host=127.0.0.1".to_owned(),
            format!("--health-server-port={}", agent_probes.port()),
            "--admin-server-port=0".to_owned(),
        ];
        let mut agent = start(dir, "konnectivity-agent", &arguments, agent_probes);
        let probes = Target::plain(server_probes);
        let ready = || http::get(&probes, "/readyz").is_ok_and(|answer| answer.status == 200);
        agent.wait_ready(LIMIT, ready).unwrap();
        let (registry, registry_probes) = registry(dir);
        Self {
            _registry: registry,
            registry_probes,
            _agent: agent,
            _server: server,
            agent_probes,
            server_probes,
            frontends,
            api_server: authority.client("kube-apiserver", &[], &[]).unwrap(),
            authority,
            upstream: Upstream::start(Behavior::Echo).unwrap(),
        }
    }

    /// Returns how an API server gets to it.
    pub(crate) fn way(&self, dir: &TempDir) -> Way {
        Way::HttpConnectTls {
            server: format!("{SERVICE}:{}", self.frontends.port()),
            authority: dir.join("konnectivity-ca.crt"),
            identity: self.api_server.write(dir.path(), "kas").unwrap(),
        }
    }

    /// Returns the bytes that came through it so far.
    pub(crate) fn carried(&self) -> f64 {
        let text = http::get(&Target::plain(self.server_probes), "/metrics").unwrap();
        let metrics = Metrics::parse(&text.text()).unwrap();
        let name = "rhizome_konnectivity_relayed_bytes_total";
        metrics.value(name, &[]).unwrap_or_default()
    }

    /// Dials as an API server does: something that answers, and something that does not. An agent
    /// without a certificate tries as well.
    pub(crate) fn use_it(&self) {
        let stranger = Target::tls(self.frontends, self.authority.pem());
        assert!(http::get(&stranger, "/").is_err());
        for (addr, answers) in [(self.upstream.addr(), true), (free(), false)] {
            let target = Target::plain(self.frontends).timeout(LIMIT);
            let target = target.proxy(Proxy::ConnectTls {
                authority: addr.to_string(),
                server_name: SERVICE.to_owned(),
                authority_pem: self.authority.pem().to_owned(),
                identity: self.api_server.clone(),
            });
            let opened = Connection::open(&target);
            assert_eq!(opened.is_ok(), answers, "{addr}");
            if let Ok(connection) = opened {
                assert_eq!(connection.raw().exchange(b"hello").unwrap(), b"hello");
            }
        }
    }
}

/// Starts a server of several clusters, of which it has one that no agent comes for.
fn registry(dir: &TempDir) -> (ChildGuard, SocketAddr) {
    let cluster = "agents: { certificates: { ca: ../konnectivity-ca.crt, identities: [\"spiffe://a\"] } }\n\
                   frontends: { uds: { path: REGISTRY, mode: http-connect } }\n";
    let socket = dir.join("foo.sock").display().to_string();
    dir.write("clusters/foo.yaml", cluster.replace("REGISTRY", &socket))
        .unwrap();
    let [agents, probes] = [(); 2].map(|()| free());
    let path = |flag: &str, file: &str| format!("--{flag}={}", dir.join(file).display());
    let arguments = [
        path("registry", "clusters"),
        "--per-cluster-metrics=true".to_owned(),
        "--mode=http-connect".to_owned(),
        "--server-port=0".to_owned(),
        "--agent-bind-address=127.0.0.1".to_owned(),
        format!("--agent-port={}", agents.port()),
        path("cluster-cert", "kn-server.crt"),
        path("cluster-key", "kn-server.key"),
        "--health-bind-address=127.0.0.1".to_owned(),
        format!("--health-port={}", probes.port()),
        "--admin-port=0".to_owned(),
    ];
    (
        start_as(dir, "konnectivity-server", "registry", &arguments, probes),
        probes,
    )
}

fn start(dir: &TempDir, name: &str, arguments: &[String], probes: SocketAddr) -> ChildGuard {
    start_as(dir, name, name, arguments, probes)
}

fn start_as(
    dir: &TempDir,
    name: &str,
    log: &str,
    arguments: &[String],
    probes: SocketAddr,
) -> ChildGuard {
    let mut command = Command::new(binary("konnectivity", name));
    command.args(arguments);
    let mut child = ChildGuard::spawn(name, &command, &dir.join(format!("{log}.log"))).unwrap();
    child.wait_listening(probes, LIMIT).unwrap();
    child
}

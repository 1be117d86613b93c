//! One server for the shoots of two API servers, both of which dial it by the name of its Service.
//!
//! ```text
//!   kube-apiserver of a ─┐ https://konnectivity-server                        ┌─ agent of a ─▶ kubelet
//!                        ├────── mTLS ──────▶ konnectivity-server --registry ◀┤
//!   kube-apiserver of b ─┘                                                    └─ agent of b ─▶ kubelet
//! ```

use serde_json::json;
use testkit::certs::{Authority, IdentityFiles};
use testkit::peers::kube::Egress;
use testkit::tempdir::TempDir;

use crate::pair::{self, Certificates, Program, SERVICE, free, show};
use crate::stage::Cluster;

/// The names by which agents ask for their server, of a zone that every resolver leads to loopback
/// (RFC 6761 section 6.3). No API server asks for them.
const NAMES: [&str; 2] = ["konnectivity.a.localhost", "konnectivity.b.localhost"];

#[test]
fn api_servers_share_one_name_in_a_registry() {
    let dir = TempDir::new("kn-registry").unwrap();
    let certificates = Certificates::write(&dir, &NAMES);
    let shoots = NAMES.map(|name| Shoot::register(&dir, name));
    let (frontends, agents) = (free(), free());
    let server = pair::server(
        &dir,
        &certificates,
        agents,
        &[
            show("registry", &dir.join("clusters")),
            "--mode=http-connect".to_owned(),
            "--workers=1".to_owned(),
            format!("--server-bind-address={}", frontends.ip()),
            format!("--server-port={}", frontends.port()),
            show("server-cert", &certificates.server.cert),
            show("server-key", &certificates.server.key),
        ],
    );
    let agents = shoots.each_ref().map(|shoot| {
        let dir = TempDir::new("kn-registry-agent").unwrap();
        let certificates = Certificates {
            agent: shoot.agent.clone(),
            ..Certificates::clone(&certificates)
        };
        let mut agent = pair::agent(&dir, &certificates, shoot.name, agents.port());
        agent.wait_ready();
        (agent, dir)
    });
    let carried = || {
        let bytes = |agent: &Program| agent.metric("rhizome_konnectivity_relayed_bytes_total");
        agents.each_ref().map(|(agent, _)| bytes(agent))
    };
    for (own, shoot) in shoots.iter().enumerate() {
        let dir = TempDir::new("kn-registry-shoot").unwrap();
        let egress = Egress::HttpConnectTls {
            server: format!("{SERVICE}:{}", frontends.port()),
            authority: certificates.authority.clone(),
            identity: shoot.frontend.clone(),
        };
        let before = carried();
        let cluster = Cluster::start(&dir, &egress);
        assert_eq!(cluster.get("healthz").text(), "ok", "{}", shoot.name);
        let after = carried();
        let grown = [0, 1].map(|agent| after[agent] > before[agent]);
        assert_eq!(grown, [own == 0, own == 1], "by its own agent alone");
    }
    let refused = server.metric("rhizome_konnectivity_refused_peers_total");
    assert_eq!(refused, 0.0);
}

/// The certificates of a shoot's agent and API server.
struct Shoot {
    name: &'static str,
    agent: IdentityFiles,
    frontend: IdentityFiles,
}

impl Shoot {
    /// Makes them with an authority of the shoot's own, and writes its file of the registry.
    fn register(dir: &TempDir, name: &'static str) -> Self {
        let authority = Authority::new(name).unwrap();
        let id = name.replace('.', "-");
        let uri = |role: &str| format!("spiffe://example.com/cluster/{id}/{role}");
        let client = |role: &str| {
            let identity = authority.client(role, &[], &[&uri(role)]).unwrap();
            identity.write(dir.path(), &format!("{id}-{role}")).unwrap()
        };
        let ca = authority.write(&dir.join(format!("{id}-ca.crt"))).unwrap();
        let known = |role: &str| json!({ "certificates": { "ca": ca, "identities": [uri(role)] } });
        let cluster = json!({
            "serverNames": [name],
            "agents": known("agent"),
            "frontends": known("kube-apiserver"),
        });
        let file = format!("clusters/{id}.yaml");
        dir.write(file, format!("{cluster:#}")).unwrap();
        Self {
            name,
            agent: client("agent"),
            frontend: client("kube-apiserver"),
        }
    }
}

//! Cases of the registry: files, reading them again, and TLS handshakes in memory.
//!
//! Here is what they share: a directory with tenants and their authorities, and a client that
//! shakes hands with a snapshot.

use std::io::Read as _;
use std::path::PathBuf;
use std::sync::Arc;

use knp_proto::{Strategy, TenantId, TenantLimits};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, HandshakeKind, RootCertStore, ServerConnection};
use testkit::certs::{Authority, Identity, mutual_client_config};
use testkit::tempdir::TempDir;

use super::authorities::provider;
use super::file::TenantFile;
use super::identity::IdentityRefused;
use super::*;

mod files;
mod handshakes;
mod many;
mod reload;

const AGENT: &str = "spiffe://example.com/cluster/";
const A: &str = "a.kn.example.com";
const B: &str = "b.kn.example.com";
const C: &str = "c.kn.example.com";
/// What `https://konnectivity-server:8090` in an egress selector makes an API server ask for.
const SERVICE: &str = "konnectivity-server";

/// A directory with the server's certificates and, in `registry`, the tenants.
pub(crate) struct Site {
    dir: TempDir,
    tls: TlsParams,
    server_ca: String,
}

impl Site {
    pub(crate) fn new() -> Self {
        let dir = TempDir::new("registry").unwrap();
        let authority = Authority::new("servers").unwrap();
        let server = authority.server(&[A, B, C, SERVICE]).unwrap();
        let files = server.write(dir.path(), "server").unwrap();
        std::fs::create_dir(dir.join("registry")).unwrap();
        let pair = PairPaths {
            cert: files.cert,
            key: files.key,
        };
        Self {
            dir,
            tls: TlsParams {
                agents_pair: Some(pair.clone()),
                frontends_pair: Some(pair),
                frontend_mode: FrontendMode::HttpConnect,
                only_tls13: false,
                cipher_suites: Vec::new(),
            },
            server_ca: authority.pem().to_owned(),
        }
    }

    fn registry_dir(&self) -> PathBuf {
        self.dir.join("registry")
    }

    pub(crate) fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        self.dir.write(format!("registry/{name}"), text).unwrap();
    }

    fn remove(&self, name: &str) {
        std::fs::remove_file(self.registry_dir().join(name)).unwrap();
    }

    /// Writes a tenant with an authority of its own for both ports.
    fn add(&self, id: &str) -> Authority {
        let authority = Authority::new(id).unwrap();
        self.write(&format!("{id}.crt"), authority.pem());
        self.write(&format!("{id}.yaml"), definition(id));
        authority
    }

    pub(crate) fn open(&self) -> Arc<Registry> {
        Registry::new(TenantSource::Registry(self.registry_dir()), &self.tls).unwrap()
    }

    fn single(&self, params: SingleParams) -> Arc<Registry> {
        Registry::new(TenantSource::Single(Box::new(params)), &self.tls).unwrap()
    }

    fn client(&self, identity: Option<&Identity>) -> Arc<ClientConfig> {
        mutual_client_config(&self.server_ca, identity, &[]).unwrap()
    }

    /// A client that sends no server name.
    fn nameless(&self, identity: Option<&Identity>) -> Arc<ClientConfig> {
        let mut config = self.client(identity);
        Arc::make_mut(&mut config).enable_sni = false;
        config
    }
}

/// A set of one key, good by its form.
const KEYS: &str = r#"{ "keys": [{
    "kty": "EC", "crv": "P-256", "kid": "one",
    "x": "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
    "y": "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
}] }"#;

/// Names an API server that is not asked.
const KUBECONFIG: &str = "\
current-context: a
clusters: [{ name: a, cluster: { server: \"https://127.0.0.1:1\" } }]
users: [{ name: a, user: { token: t } }]
contexts: [{ name: a, context: { cluster: a, user: a } }]
";

/// A tenant's file: its own authority, one identity a port, one server name.
fn definition(id: &str) -> String {
    format!(
        "serverNames: [\"{id}.kn.example.com\"]\n\
         agents:\n  certificates: {{ ca: {id}.crt, identities: [\"{AGENT}{id}\"] }}\n\
         frontends:\n  certificates: {{ ca: {id}.crt, identities: [\"{AGENT}{id}/api\"] }}\n"
    )
}

fn chain(identity: &Identity) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(identity.cert_pem.as_bytes())
        .collect::<Result<_, _>>()
        .unwrap()
}

fn agent_of(authority: &Authority, id: &str) -> Identity {
    let uri = format!("{AGENT}{id}");
    authority.client("agent", &[], &[&uri]).unwrap()
}

fn frontend_of(authority: &Authority, id: &str) -> Identity {
    let uri = format!("{AGENT}{id}/api");
    authority.client("api", &[], &[&uri]).unwrap()
}

fn ids(registry: &Registry) -> Vec<String> {
    let current = registry.current();
    current.all().map(|spec| spec.id.to_string()).collect()
}

fn broken(registry: &Registry) -> Vec<String> {
    let broken = registry.broken();
    broken.into_iter().map(|(id, _)| id.to_string()).collect()
}

/// One tenant that every peer belongs to.
pub(crate) fn whole() -> SingleParams {
    SingleParams {
        spec: TenantSpec {
            id: TenantId::new("default"),
            server_names: Vec::new(),
            strategies: vec![Strategy::Default],
            server_count: 1,
            limits: TenantLimits::default(),
            agent_certificates: None,
            tokens: None,
            frontend_certificates: None,
            uds: None,
        },
        agents_ca: None,
        frontends_ca: None,
    }
}

/// A finished handshake.
struct Shaken {
    server: ServerConnection,
    kind: HandshakeKind,
}

impl Shaken {
    fn certs(&self) -> Option<&[CertificateDer<'static>]> {
        self.server.peer_certificates()
    }

    fn met(&self, tenants: &Tenants, port: Port) -> String {
        let (name, now) = (self.server.server_name(), UnixTime::now());
        told(tenants.identify(port, name, self.certs(), now))
    }
}

/// Returns whose peer the server found, or why it is none.
fn told(identified: Result<Peer, IdentityRefused>) -> String {
    match identified {
        Ok(Peer::Certified(spec)) => format!("tenant {}", spec.id),
        Ok(Peer::ByToken { hint: Some(spec) }) => format!("token of {}", spec.id),
        Ok(Peer::ByToken { hint: None }) => "token".to_owned(),
        Err(refused) => refused.as_str().to_owned(),
    }
}

/// Connects to `name` and returns what [`told`] says, or `handshake` where that failed.
fn meet(tenants: &Tenants, port: Port, name: &str, client: &Arc<ClientConfig>) -> String {
    match shake(tenants, port, name, client) {
        Some(shaken) => shaken.met(tenants, port),
        None => "handshake".to_owned(),
    }
}

/// Shakes hands in memory; nothing when the server refuses.
fn shake(tenants: &Tenants, port: Port, name: &str, client: &Arc<ClientConfig>) -> Option<Shaken> {
    let sni = client.enable_sni.then_some(name);
    let mut server = ServerConnection::new(tenants.tls(port, sni)).unwrap();
    let to = ServerName::try_from(name.to_owned()).unwrap();
    let mut client = ClientConnection::new(client.clone(), to).unwrap();
    loop {
        let mut wire = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut wire).unwrap();
        }
        let sent = wire.len();
        let mut rest = wire.as_slice();
        while !rest.is_empty() {
            server.read_tls(&mut rest).unwrap();
            server.process_new_packets().ok()?;
        }
        let mut wire = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut wire).unwrap();
        }
        if sent + wire.len() == 0 {
            break;
        }
        let mut rest = wire.as_slice();
        while !rest.is_empty() {
            client.read_tls(&mut rest).unwrap();
            client.process_new_packets().ok()?;
        }
        // Nothing is sent but tickets, which are taken by being read.
        let _ = client.reader().read(&mut [0; 16]);
    }
    let kind = server.handshake_kind()?;
    Some(Shaken { server, kind })
}

//! Certificates for a pair of our own: two authorities, as a real set-up has them.
//!
//! ```text
//! frontend authority ──▶ frontend.crt (server, for API servers)   apiserver.crt (us)
//! agents' authority  ──▶ cluster.crt  (server, for agents)        agent.crt
//! ```
//!
//! Files in a directory that its owner removes; nothing here outlives a run.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use rustls::client::Resumption;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use testkit::certs::{Authority, IdentityFiles};
use testkit::tempdir::TempDir;

/// Paths of everything a server and an agent are started with.
#[derive(Debug)]
pub(crate) struct Credentials {
    /// The authority of [`Self::cluster`] and [`Self::agent`].
    pub(crate) agents_ca: PathBuf,
    /// The agent's.
    pub(crate) agent: IdentityFiles,
    /// A client's of the frontend.
    pub(crate) apiserver: IdentityFiles,
    /// The server's for agents.
    pub(crate) cluster: IdentityFiles,
    /// The server's for frontends.
    pub(crate) frontend: IdentityFiles,
    /// The authority of [`Self::frontend`] and [`Self::apiserver`].
    pub(crate) frontend_ca: PathBuf,
}

impl Credentials {
    /// Makes them in `dir`. Servers are called `localhost` and `127.0.0.1`.
    pub(crate) fn make(dir: &TempDir) -> Result<Self> {
        let names = ["localhost", "127.0.0.1"];
        let agents = Authority::new("bench-agents")?;
        let frontends = Authority::new("bench-frontends")?;
        let path = dir.path();
        Ok(Self {
            agents_ca: agents.write(&dir.join("agents-ca.crt"))?,
            agent: agents
                .client("konnectivity-agent", &[], &[])?
                .write(path, "agent")?,
            apiserver: frontends
                .client("kube-apiserver", &[], &[])?
                .write(path, "apiserver")?,
            cluster: agents.server(&names)?.write(path, "cluster")?,
            frontend: frontends.server(&names)?.write(path, "frontend")?,
            frontend_ca: frontends.write(&dir.join("frontend-ca.crt"))?,
        })
    }
}

/// Builds the TLS settings of a frontend's client. `alpn` is `h2` with gRPC and `http/1.1` without.
/// No session is resumed, as kube-apiserver resumes none.
pub(crate) fn client_config(
    ca: &Path,
    identity: &IdentityFiles,
    grpc: bool,
) -> Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    for cert in certificates(ca)? {
        roots
            .add(cert)
            .with_context(|| format!("trusting {}", ca.display()))?;
    }
    let key = PrivateKeyDer::from_pem_file(&identity.key)
        .with_context(|| format!("reading {}", identity.key.display()))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .context("choosing TLS versions")?
        .with_root_certificates(roots)
        .with_client_auth_cert(certificates(&identity.cert)?, key)
        .context("using our certificate")?;
    config.alpn_protocols = vec![if grpc {
        b"h2".into()
    } else {
        b"http/1.1".into()
    }];
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .with_context(|| format!("reading {}", path.display()))
}

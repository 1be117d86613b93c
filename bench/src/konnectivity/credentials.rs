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
use rustls::ClientConfig;
use rustls::client::Resumption;
use testkit::certs::{self, Authority, Identity, IdentityFiles};
use testkit::tempdir::TempDir;

/// Paths of everything a server and an agent are started with.
#[derive(Debug)]
pub(crate) struct Credentials {
    /// The authority of [`Self::cluster`] and [`Self::agent`].
    pub(crate) agents_ca: PathBuf,
    pub(crate) agent: IdentityFiles,
    /// A client's of the frontend.
    pub(crate) apiserver: IdentityFiles,
    pub(crate) cluster: IdentityFiles,
    pub(crate) frontend: IdentityFiles,
    /// The authority of [`Self::frontend`] and [`Self::apiserver`].
    pub(crate) frontend_ca: PathBuf,
}

impl Credentials {
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
    let ca = std::fs::read_to_string(ca).with_context(|| format!("reading {}", ca.display()))?;
    let alpn = if grpc { "h2" } else { "http/1.1" };
    let config = certs::mutual_client_config(&ca, Some(&Identity::read(identity)?), &[alpn])?;
    let mut config = Arc::unwrap_or_clone(config);
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

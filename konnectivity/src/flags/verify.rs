//! Opens what a configuration points to, as a start would: certificates, keys, kubeconfigs, the
//! files of a registry and those they name.
//!
//! For `--check`. What can only be known by asking others is not asked: no connection is opened.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use tls::{ClientAuth, ServerTls, ServerTlsParams, TlsError};

use crate::api_server::{KubeconfigFault, MAX_FILE_BYTES, check_kubeconfig, read_limited};
use crate::registry::{Registry, RegistryError};

use super::{AgentIdentity, AgentSetup, ClusterSource, KeyPair, ServerConfig};

/// What a configuration points to cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// A kubeconfig cannot be used.
    #[error("reading the kubeconfig {}", path.display())]
    Kubeconfig {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: KubeconfigFault,
    },
    /// A file or directory cannot be read.
    #[error("reading {}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// What the system answered.
        #[source]
        source: io::Error,
    },
    /// Files of the registry are refused.
    #[error("refused in the registry {}:\n{faults}", directory.display())]
    Registry {
        /// Which registry.
        directory: PathBuf,
        /// What is wrong, by file and key, one a line.
        faults: String,
    },
    /// Certificates or keys are refused.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// What an agent trusts or shows is refused.
    #[error(transparent)]
    Trust(#[from] crate::agent::TrustError),
}

impl ServerConfig {
    /// Opens all files that this names, and those that the files of a registry name.
    ///
    /// # Errors
    /// The first that cannot be used; of a registry all.
    pub fn verify(&self) -> Result<(), VerifyError> {
        let single = match &self.clusters {
            ClusterSource::Registry(directory) => {
                registry(directory)?;
                None
            }
            ClusterSource::Single(single) => Some(single),
        };
        let agent_ca = match single.map(|single| &single.agents) {
            Some(AgentIdentity::Certificate { ca }) => Some(ca),
            Some(AgentIdentity::Token(token)) => {
                kubeconfig(token.kubeconfig.as_ref())?;
                None
            }
            Some(AgentIdentity::Anyone) | None => None,
        };
        port(&self.agents.identity, agent_ca)?;
        if let Some(frontends) = &self.frontends {
            port(
                &frontends.identity,
                single.and_then(|single| single.frontend_ca.as_ref()),
            )?;
        }
        let lease = single.and_then(|single| single.lease.as_ref());
        kubeconfig(lease.and_then(|lease| lease.kubeconfig.as_ref()))
    }
}

impl AgentSetup {
    /// Opens all files that this names.
    ///
    /// # Errors
    /// The first that cannot be used.
    pub fn verify(&self) -> Result<(), VerifyError> {
        let agent = &self.agent;
        agent.check_trust()?;
        if let Some(path) = &agent.token {
            File::open(path).map_err(|source| read_error(path, source))?;
        }
        kubeconfig(
            agent
                .leases
                .as_ref()
                .and_then(|own| own.kubeconfig.as_ref()),
        )
    }
}

fn read_error(path: &Path, source: io::Error) -> VerifyError {
    let path = path.to_owned();
    VerifyError::Read { path, source }
}

fn port(pair: &KeyPair, ca: Option<&PathBuf>) -> Result<(), VerifyError> {
    let client_auth = if ca.is_some() {
        ClientAuth::Required
    } else {
        ClientAuth::None
    };
    ServerTls::load(ServerTlsParams {
        cert: pair.cert.clone(),
        key: pair.key.clone(),
        client_ca: ca.cloned(),
        client_auth,
        alpn: Vec::new(),
    })?;
    Ok(())
}

fn kubeconfig(path: Option<&PathBuf>) -> Result<(), VerifyError> {
    let Some(path) = path else {
        return Ok(());
    };
    let octets = read_limited(path, MAX_FILE_BYTES).map_err(|source| read_error(path, source))?;
    check_kubeconfig(&octets).map_err(|source| VerifyError::Kubeconfig {
        path: path.clone(),
        source,
    })
}

fn registry(directory: &Path) -> Result<(), VerifyError> {
    let refused = |faults| VerifyError::Registry {
        directory: directory.to_owned(),
        faults,
    };
    let faults = Registry::faults(directory).map_err(|error| {
        if let RegistryError::Directory { path, source } = error {
            read_error(&path, source)
        } else {
            refused(telemetry::chain(&error).to_string())
        }
    })?;
    if faults.is_empty() {
        return Ok(());
    }
    let lines: Vec<_> = faults.into_iter().map(|(_, reason)| reason).collect();
    Err(refused(lines.join("\n")))
}

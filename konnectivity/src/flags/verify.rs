//! Opens what a configuration points to, as a start would: certificates, keys, kubeconfigs.
//!
//! For `--check`. What can only be known by asking others is not asked: no connection is opened.

use std::io;
use std::path::{Path, PathBuf};

use kube::config::{Kubeconfig, KubeconfigError};
use tls::{ClientAuth, ClientTls, ClientTlsParams, ServerTls, ServerTlsParams, TlsError};

use super::{
    AgentConfig, AgentIdentity, ApiServer, ClusterSource, LeasePlace, ServerConfig, TlsPort,
};

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
        source: Box<KubeconfigError>,
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
    /// Certificates or keys are refused.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

impl ServerConfig {
    /// Opens all files that this names, but not those that the files of a registry name.
    ///
    /// # Errors
    /// The first that cannot be used.
    pub fn verify(&self) -> Result<(), VerifyError> {
        let single = match &self.clusters {
            ClusterSource::Registry(directory) => {
                std::fs::read_dir(directory).map_err(|source| read_error(directory, source))?;
                None
            }
            ClusterSource::Single(single) => Some(single),
        };
        let agent_ca = match single.map(|single| &single.agents) {
            Some(AgentIdentity::Certificate { ca }) => Some(ca),
            Some(AgentIdentity::Token(token)) => {
                kubeconfig(&token.api_server)?;
                None
            }
            Some(AgentIdentity::Anyone) | None => None,
        };
        port(&self.agents, agent_ca)?;
        if let Some(frontends) = &self.frontends {
            port(
                frontends,
                single.and_then(|single| single.frontend_ca.as_ref()),
            )?;
        }
        leases(single.and_then(|single| single.lease.as_ref()))
    }
}

impl AgentConfig {
    /// Opens all files that this names.
    ///
    /// # Errors
    /// The first that cannot be used.
    pub fn verify(&self) -> Result<(), VerifyError> {
        if let Some(ca) = &self.tls.ca {
            let (cert, key) = self
                .tls
                .identity
                .clone()
                .map_or((None, None), |pair| (Some(pair.cert), Some(pair.key)));
            let ca = ca.clone();
            ClientTls::load(ClientTlsParams {
                ca,
                cert,
                key,
                alpn: Vec::new(),
            })?;
        } else if let Some(pair) = &self.tls.identity {
            let address = self.health;
            let identity = pair.clone();
            port(&TlsPort { address, identity }, None)?;
        }
        if let Some(path) = &self.token {
            std::fs::File::open(path).map_err(|source| read_error(path, source))?;
        }
        leases(self.servers.leases.as_ref())
    }
}

fn read_error(path: &Path, source: io::Error) -> VerifyError {
    let path = path.to_owned();
    VerifyError::Read { path, source }
}

fn port(port: &TlsPort, ca: Option<&PathBuf>) -> Result<(), VerifyError> {
    let client_auth = if ca.is_some() {
        ClientAuth::Required
    } else {
        ClientAuth::None
    };
    ServerTls::load(ServerTlsParams {
        cert: port.identity.cert.clone(),
        key: port.identity.key.clone(),
        client_ca: ca.cloned(),
        client_auth,
        alpn: Vec::new(),
    })?;
    Ok(())
}

fn leases(place: Option<&LeasePlace>) -> Result<(), VerifyError> {
    place.map_or(Ok(()), |place| kubeconfig(&place.api_server))
}

fn kubeconfig(api_server: &ApiServer) -> Result<(), VerifyError> {
    let ApiServer::Kubeconfig(path) = api_server else {
        return Ok(());
    };
    match Kubeconfig::read_from(path) {
        Ok(_) => Ok(()),
        Err(error) => Err(VerifyError::Kubeconfig {
            path: path.clone(),
            source: Box::new(error),
        }),
    }
}

//! Opens what a configuration names, as a start would: certificates, keys, kubeconfigs, the files
//! of a registry and those they name.
//!
//! For `--check`. Opens no connection.

use std::fs::File;
use std::path::{Path, PathBuf};

use serve::Failure;

use crate::agent::AgentConfig;
use crate::api_server::{ApiServerError, MAX_FILE_BYTES, check_kubeconfig, read_limited};
use crate::process::Verify;
use crate::registry::Registry;

use super::{ServerConfig, TenantSource};

/// The first file that cannot be used is the error; of a registry, all.
impl Verify for ServerConfig {
    fn verify(&self) -> Result<(), Failure> {
        match &self.tenants {
            TenantSource::Registry(directory) => {
                let faults = Registry::faults(directory).map_err(Failure::configuration)?;
                if !faults.is_empty() {
                    let faults: Vec<_> = faults.into_iter().map(|(_, reason)| reason).collect();
                    let (directory, faults) = (directory.display(), faults.join("\n"));
                    let message = format!("rejected in the registry {directory}:\n{faults}");
                    return Err(Failure::configuration(message));
                }
                Registry::open(directory, &self.tls).map_err(Failure::configuration)?;
                Ok(())
            }
            TenantSource::Single { params, lease } => {
                let registry = Registry::single((**params).clone(), &self.tls);
                registry.map_err(Failure::configuration)?;
                let tokens = params.spec.tokens.as_ref();
                kubeconfig(tokens.and_then(|tokens| tokens.kubeconfig.as_ref()))?;
                kubeconfig(lease.as_ref().and_then(|own| own.kubeconfig.as_ref()))
            }
        }
    }
}

/// The first file that cannot be used is the error.
impl Verify for AgentConfig {
    fn verify(&self) -> Result<(), Failure> {
        self.check_trust().map_err(Failure::configuration)?;
        if let Some(path) = &self.token {
            let read = File::open(path);
            read.map_err(|source| read_error(path, source))?;
        }
        kubeconfig(self.leases.as_ref().and_then(|own| own.kubeconfig.as_ref()))
    }
}

fn read_error(path: &Path, source: std::io::Error) -> Failure {
    let path = path.to_owned();
    Failure::configuration(ApiServerError::Read { path, source })
}

fn kubeconfig(path: Option<&PathBuf>) -> Result<(), Failure> {
    let Some(path) = path else {
        return Ok(());
    };
    let text = read_limited(path, MAX_FILE_BYTES).map_err(|source| read_error(path, source))?;
    check_kubeconfig(&text).map_err(|source| {
        let path = path.clone();
        Failure::configuration(ApiServerError::Kubeconfig { path, source })
    })
}

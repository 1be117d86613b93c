//! Opens what a configuration names, as a start would: certificates, keys, kubeconfigs, the files
//! of a registry and those they name.
//!
//! For `--check`. Opens no connection.

use std::fs::File;

use serve::Failure;

use crate::agent::{AgentConfig, load_trust};
use crate::api_server::{ApiServerError, check_file};
use crate::process::Verify;
use crate::registry::{Registry, TenantSource};

use super::ServerConfig;

/// The first file that cannot be used is the error; of a registry, all.
impl Verify for ServerConfig {
    fn verify(&self) -> Result<(), Failure> {
        let tokens = match &self.tenants {
            TenantSource::Registry(directory) => {
                let faults = Registry::faults(directory).map_err(Failure::configuration)?;
                if !faults.is_empty() {
                    let faults: Vec<_> = faults.into_iter().map(|(_, reason)| reason).collect();
                    let (directory, faults) = (directory.display(), faults.join("\n"));
                    let message = format!("rejected in the registry {directory}:\n{faults}");
                    return Err(Failure::configuration(message));
                }
                None
            }
            TenantSource::Single(params) => params.spec.tokens.as_ref(),
        };
        let registry = Registry::new(self.tenants.clone(), &self.tls);
        registry.map_err(Failure::configuration)?;
        let tokens = tokens.and_then(|tokens| tokens.kubeconfig.as_ref());
        let lease = self.lease.as_ref().and_then(|own| own.kubeconfig.as_ref());
        let checked = check_file(tokens).and_then(|()| check_file(lease));
        checked.map_err(Failure::configuration)
    }
}

/// The first file that cannot be used is the error.
impl Verify for AgentConfig {
    fn verify(&self) -> Result<(), Failure> {
        load_trust(self).map_err(Failure::configuration)?;
        if let Some(path) = &self.token {
            let read = |source| ApiServerError::Read(path.clone(), source);
            let opened = File::open(path).map_err(read);
            opened.map_err(Failure::configuration)?;
        }
        let leases = self.leases.as_ref();
        let kubeconfig = leases.and_then(|own| own.kubeconfig.as_ref());
        check_file(kubeconfig).map_err(Failure::configuration)
    }
}

//! Gardener's environment variables: what they say where the file says nothing.
//!
//! ```text
//!   SHOOT_*_NETWORKS ─────────▶ networks          VPN_NETWORK, POD_NAME, IS_HA ─▶ addresses, name
//! ```
//!
//! The file always wins, key by key.

use settings::ConfigErrors;
use tunnel::settings::{Cidr, End, pod_number, shoot_networks, transfer_addresses};

use super::file::Config;

/// What this program takes from its environment.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// `IS_HA`: whether several servers share the work; `POD_NAME` must then end in a number.
    pub is_ha: Option<String>,
    /// `POD_NAME`: the name of this server; the number at its end is which one it is.
    pub pod_name: Option<String>,
    /// `SHOOT_NODE_NETWORKS`, with commas between.
    pub shoot_node_networks: Option<String>,
    /// `SHOOT_POD_NETWORKS`.
    pub shoot_pod_networks: Option<String>,
    /// `SHOOT_SERVICE_NETWORKS`.
    pub shoot_service_networks: Option<String>,
    /// `VPN_NETWORK`: the transfer network.
    pub vpn_network: Option<String>,
}

impl Environment {
    /// Reads the variables this program knows; values that are not UTF-8, and empty ones, count as
    /// absent.
    #[must_use]
    #[expect(
        clippy::disallowed_methods,
        reason = "this module reads the environment"
    )]
    pub fn read() -> Self {
        let value = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        Self {
            is_ha: value("IS_HA"),
            pod_name: value("POD_NAME"),
            shoot_node_networks: value("SHOOT_NODE_NETWORKS"),
            shoot_pod_networks: value("SHOOT_POD_NETWORKS"),
            shoot_service_networks: value("SHOOT_SERVICE_NETWORKS"),
            vpn_network: value("VPN_NETWORK"),
        }
    }

    /// Fills what `file` leaves open.
    pub(super) fn fill(&self, file: &mut Config, errors: &mut ConfigErrors) {
        file.networks.or(shoot_networks(
            self.shoot_pod_networks.as_deref(),
            self.shoot_service_networks.as_deref(),
            self.shoot_node_networks.as_deref(),
            errors,
        ));
        if file.name.is_empty() {
            let name = self.pod_name.as_deref().unwrap_or("vpn-seed-server");
            name.clone_into(&mut file.name);
        }
        if file.addresses.is_empty() {
            self.fill_addresses(file, errors);
        }
    }

    fn fill_addresses(&self, file: &mut Config, errors: &mut ConfigErrors) {
        let given = Cidr::list(self.vpn_network.as_deref().unwrap_or_default());
        let given = match given {
            Ok(given) => given.into_iter().map(|cidr| cidr.0).collect::<Vec<_>>(),
            Err(error) => return errors.add("VPN_NETWORK", error),
        };
        let number = pod_number(self.is_ha.as_deref(), self.pod_name.as_deref(), errors);
        let Some(number) = number else { return };
        match transfer_addresses(&given, &file.networks.all(), End::Server(number)) {
            Ok(addresses) => file.addresses = addresses,
            Err(error) => errors.add("VPN_NETWORK", error),
        }
    }
}

//! Gardener's environment variables: defaults for what the file leaves out.
//!
//! ```text
//!   ENDPOINT, OPENVPN_PORT, REVERSED_VPN_HEADER_KEY ─▶ endpoint     REVERSED_VPN_HEADER ─▶ value
//!   SHOOT_*_NETWORKS ─▶ networks      VPN_NETWORK, POD_NAME, IS_HA ─▶ addresses, name
//! ```
//!
//! The file always wins, key by key. The outcome is checked in `checks`.

use settings::ConfigErrors;
use tunnel::settings::{End, Environment, TunnelAddress, trailing_number};

use super::file::File;

/// Reads the variables this program knows.
#[must_use]
pub fn environment() -> Environment {
    Environment::read(&VARIABLES)
}

const VARIABLES: [&str; 10] = [
    "ENDPOINT",
    "IS_HA",
    "OPENVPN_PORT",
    "POD_NAME",
    "REVERSED_VPN_HEADER",
    "REVERSED_VPN_HEADER_KEY",
    "SHOOT_NODE_NETWORKS",
    "SHOOT_POD_NETWORKS",
    "SHOOT_SERVICE_NETWORKS",
    "VPN_NETWORK",
];

/// The port of Gardener's listener for tunnels.
const DEFAULT_PORT: u16 = 8132;

impl File {
    /// Fills what the file leaves open.
    pub(super) fn fill(&mut self, environment: &Environment, errors: &mut ConfigErrors) {
        or_else(&mut self.name, environment.get("POD_NAME"), "vpn-shoot");
        let endpoint = &mut self.endpoint;
        or_else(&mut endpoint.address, environment.get("ENDPOINT"), "");
        let header = environment.get("REVERSED_VPN_HEADER_KEY");
        or_else(&mut endpoint.header, header, "Reversed-VPN");
        if endpoint.tcp_port.is_none() {
            let port = environment.get("OPENVPN_PORT").map(str::parse);
            if let Some(Err(_)) = port {
                errors.add("OPENVPN_PORT", "not a port");
            }
            endpoint.tcp_port = port.and_then(Result::ok).or(Some(DEFAULT_PORT));
        }
        if let [only] = self.servers.as_mut_slice() {
            or_else(&mut only.value, environment.get("REVERSED_VPN_HEADER"), "");
        }
        environment.fill_networks(&mut self.networks, errors);
        if let Err(error) = self.fill_addresses(environment, errors) {
            errors.add("VPN_NETWORK", error);
        }
    }

    /// Derives inner addresses of both ends, where the file names none.
    fn fill_addresses(
        &mut self,
        environment: &Environment,
        errors: &mut ConfigErrors,
    ) -> Result<(), String> {
        let networks = self.networks.all();
        if self.addresses.is_empty()
            && let Some(number) = environment.pod_number(errors)
        {
            self.addresses = environment.addresses(&networks, End::Client(number))?;
        }
        for (place, server) in (0_u16..).zip(&mut self.servers) {
            if server.addresses.is_empty() {
                let number = trailing_number(&server.name).unwrap_or(place);
                let addresses = environment.addresses(&networks, End::Server(number))?;
                server.addresses = addresses.iter().map(TunnelAddress::address).collect();
            }
        }
        Ok(())
    }
}

fn or_else(value: &mut String, variable: Option<&str>, default: &str) {
    if value.is_empty() {
        variable.unwrap_or(default).clone_into(value);
    }
}

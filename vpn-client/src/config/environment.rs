//! Gardener's environment variables: defaults for what the file leaves out.
//!
//! ```text
//!   ENDPOINT, OPENVPN_PORT, REVERSED_VPN_HEADER_KEY ─▶ endpoint     REVERSED_VPN_HEADER ─▶ value
//!   SHOOT_*_NETWORKS ─▶ networks      VPN_NETWORK, POD_NAME, IS_HA ─▶ addresses, name
//! ```
//!
//! The file always wins, key by key. The outcome is checked in `checks`.

use ipnet::IpNet;
use settings::ConfigErrors;
use tunnel::settings::{
    Cidr, End, pod_number, shoot_networks, trailing_number, transfer_addresses,
};

use super::file::{File, ServerFile};

/// What this program takes from its environment.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// `ENDPOINT`: host name or address of the gateway.
    pub endpoint: Option<String>,
    /// `IS_HA`: whether several clients share the work; `POD_NAME` must then end in a number.
    pub is_ha: Option<String>,
    /// `OPENVPN_PORT`: the gateway's port for HTTP CONNECT.
    pub openvpn_port: Option<String>,
    /// `POD_NAME`: the name of this client; the number at its end is which one it is.
    pub pod_name: Option<String>,
    /// `REVERSED_VPN_HEADER`: the header's value that leads to the server.
    pub reversed_vpn_header: Option<String>,
    /// `REVERSED_VPN_HEADER_KEY`: the name of that header.
    pub reversed_vpn_header_key: Option<String>,
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
        reason = "this is the module that reads the environment"
    )]
    pub fn read() -> Self {
        let value = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        Self {
            endpoint: value("ENDPOINT"),
            is_ha: value("IS_HA"),
            openvpn_port: value("OPENVPN_PORT"),
            pod_name: value("POD_NAME"),
            reversed_vpn_header: value("REVERSED_VPN_HEADER"),
            reversed_vpn_header_key: value("REVERSED_VPN_HEADER_KEY"),
            shoot_node_networks: value("SHOOT_NODE_NETWORKS"),
            shoot_pod_networks: value("SHOOT_POD_NETWORKS"),
            shoot_service_networks: value("SHOOT_SERVICE_NETWORKS"),
            vpn_network: value("VPN_NETWORK"),
        }
    }

    /// Fills what `file` leaves open.
    pub(super) fn fill(&self, file: &mut File, errors: &mut ConfigErrors) {
        or_else(&mut file.name, self.pod_name.as_deref(), "vpn-shoot");
        let endpoint = &mut file.endpoint;
        or_else(&mut endpoint.address, self.endpoint.as_deref(), "");
        let header = self.reversed_vpn_header_key.as_deref();
        or_else(&mut endpoint.header, header, "Reversed-VPN");
        if endpoint.tcp_port.is_none() {
            endpoint.tcp_port = Some(self.port(errors));
        }
        if let [only] = file.servers.as_mut_slice() {
            or_else(&mut only.value, self.reversed_vpn_header.as_deref(), "");
        }
        file.networks.or(shoot_networks(
            self.shoot_pod_networks.as_deref(),
            self.shoot_service_networks.as_deref(),
            self.shoot_node_networks.as_deref(),
            errors,
        ));
        self.fill_addresses(file, errors);
    }

    fn port(&self, errors: &mut ConfigErrors) -> u16 {
        match self.openvpn_port.as_deref().map(str::parse) {
            None => DEFAULT_PORT,
            Some(Ok(port)) => port,
            Some(Err(_)) => {
                errors.add("OPENVPN_PORT", "not a port");
                DEFAULT_PORT
            }
        }
    }

    /// Derives inner addresses of both ends, where the file names none.
    fn fill_addresses(&self, file: &mut File, errors: &mut ConfigErrors) {
        let given = Cidr::list(self.vpn_network.as_deref().unwrap_or_default());
        let given: Vec<IpNet> = match given {
            Ok(given) => given.iter().map(|cidr| cidr.0).collect(),
            Err(error) => return errors.add("VPN_NETWORK", error),
        };
        let networks = file.networks.all();
        if file.addresses.is_empty()
            && let Some(number) =
                pod_number(self.is_ha.as_deref(), self.pod_name.as_deref(), errors)
        {
            match transfer_addresses(&given, &networks, End::Client(number)) {
                Ok(addresses) => file.addresses = addresses,
                Err(error) => errors.add("VPN_NETWORK", error),
            }
        }
        for (place, server) in (0_u16..).zip(&mut file.servers) {
            if !server.addresses.is_empty() {
                continue;
            }
            let number = number_of(server).unwrap_or(place);
            match transfer_addresses(&given, &networks, End::Server(number)) {
                Ok(addresses) => {
                    server.addresses = addresses.iter().map(|own| own.address()).collect();
                }
                Err(error) => errors.add("VPN_NETWORK", error),
            }
        }
    }
}

/// The port of Gardener's listener for tunnels.
const DEFAULT_PORT: u16 = 8132;

fn number_of(server: &ServerFile) -> Option<u16> {
    trailing_number(&server.name)
}

fn or_else(value: &mut String, variable: Option<&str>, default: &str) {
    if value.is_empty() {
        variable.unwrap_or(default).clone_into(value);
    }
}

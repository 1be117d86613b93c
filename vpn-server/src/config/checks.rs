//! What the values of the file must be.
//!
//! Every mistake is found at once and named by its key.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::Path;

use ipnet::IpNet;
use route::TcpOptions;
use settings::{ByteSize, ConfigErrors, TcpOverrides, TcpSettings};
use tunnel::RouteId;
use tunnel::settings::{TunnelAddress, overlap, resolve_congestion, tcp, validate_addresses};

use super::file::{Config, KeyFiles};

/// Bounds of `mtu`: what IPv6 asks for at least (RFC 8200 §5), and jumbo frames.
const MTU: RangeInclusive<u16> = 1280..=9000;
/// Tables of the kernel's own (rtnetlink(7)): none, default, main and local.
const OWN_TABLES: [u32; 4] = [0, 253, 254, 255];
/// Most worker threads; a proxy of one shoot needs one.
const MAX_WORKERS: usize = 64;
/// Most flows that the filter can number.
const MAX_FLOWS: usize = 16 << 20;
/// Most own keys: there are numbers for 16 pairs.
const MAX_KEYS: usize = 16;
/// Bounds of the kernel's buffers: one batch, and what no kernel grants.
const BUFFER: RangeInclusive<u64> = 64 * 1024..=1024 * 1024 * 1024;

impl Config {
    /// Puts the TCP options in effect where the file's were.
    pub(super) fn fill_tcp(&mut self) {
        let mut tunnels = tcp(&self.tcp);
        resolve_congestion(&mut tunnels);
        self.tcp = tunnels.into();
        self.proxy.tcp = self.proxy.tcp.over(&TcpSettings::default()).into();
    }

    /// Adds to `errors` what is wrong, and works out what the file has in another form. `origin` is
    /// the file itself.
    pub(super) fn validate(&mut self, origin: &Path, errors: &mut ConfigErrors) {
        self.check_device(errors);
        self.check_numbers(errors);
        self.check_listeners(errors);
        self.queue.validate("queue", errors);
        // Without networks no address is missing for them.
        self.networks.validate("networks", errors);
        self.inner = self.addresses(errors);
        self.check_keys(errors);
        self.check_proxy(errors);
        self.route = self.route_id.and_then(RouteId::new);
        if let (Some(number), None) = (self.route_id, self.route) {
            let most = RouteId::MAX;
            errors.add("routeId", format!("{number} is not between 1 and {most}"));
        }
        self.tcp_options = tcp_options(&self.tcp, "tcp", errors);
        self.proxy.tcp_options = tcp_options(&self.proxy.tcp, "proxy.tcp", errors);
        let private = self.keys.private.iter();
        self.key_files = KeyFiles {
            private: private.map(|path| path.resolve(origin)).collect(),
            peers: self.keys.peers.resolve(origin),
        };
        origin.clone_into(&mut self.origin);
    }

    fn check_device(&self, errors: &mut ConfigErrors) {
        if OWN_TABLES.contains(&self.table) {
            let why = format!("{} is a table of the kernel's own", self.table);
            errors.add("table", why);
        }
        if !MTU.contains(&self.mtu) {
            let (least, most) = (MTU.start(), MTU.end());
            errors.add(
                "mtu",
                format!("{} is not between {least} and {most}", self.mtu),
            );
        }
    }

    fn check_numbers(&self, errors: &mut ConfigErrors) {
        let (limits, proxy) = (&self.limits, &self.proxy);
        for (key, zero) in [
            ("proxy.connections", proxy.connections == 0),
            ("proxy.connectTimeout", proxy.connect_timeout.0.is_zero()),
            ("limits.links", limits.links == 0),
            ("limits.helloTimeout", limits.hello_timeout.0.is_zero()),
            (
                "limits.preambleTimeout",
                limits.preamble_timeout.0.is_zero(),
            ),
        ] {
            if zero {
                errors.add(key, "0 would refuse every connection");
            }
        }
        for (key, size) in [
            ("buffers.receive", self.buffers.receive),
            ("buffers.send", self.buffers.send),
        ] {
            if !BUFFER.contains(&size.0) {
                let (least, most) = (ByteSize(*BUFFER.start()), ByteSize(*BUFFER.end()));
                errors.add(key, format!("not between {least} and {most}"));
            }
        }
        if !(1..=MAX_FLOWS).contains(&self.flows) {
            errors.add("flows", format!("not between 1 and {MAX_FLOWS}"));
        }
        if !(1..=MAX_WORKERS).contains(&self.workers) {
            errors.add("workers", format!("not between 1 and {MAX_WORKERS}"));
        }
    }

    fn check_listeners(&self, errors: &mut ConfigErrors) {
        let listen = &self.listen;
        if listen.tcp.is_none() && listen.udp.is_none() && listen.wrapped.is_none() {
            errors.add("listen", "no client could reach a server without a port");
        }
        if listen.wrapped.is_some()
            && listen.tcp.is_none()
            && listen.udp.is_none()
            && self.trusted_gateways.is_empty()
        {
            let why = "needed when wrapped datagrams are the only way in";
            errors.add("trustedGateways", why);
        }
        let taken = |one: SocketAddr, other: SocketAddr| one == other && one.port() != 0;
        if let (Some(udp), Some(wrapped)) = (listen.udp, listen.wrapped)
            && taken(udp.0, wrapped.0)
        {
            errors.add(
                "listen.wrapped",
                format!("{wrapped} is `listen.udp` already"),
            );
        }
        let mut tcp = vec![("proxy.address", self.proxy.address.0)];
        tcp.extend(listen.tcp.map(|address| ("listen.tcp", address.0)));
        tcp.push(("probes.address", self.probes.address()));
        for (at, (key, address)) in tcp.iter().enumerate() {
            let mut before = tcp.iter().take(at);
            if let Some((first, _)) = before.find(|(_, other)| taken(*other, *address)) {
                errors.add(key, format!("{address} is `{first}` already"));
            }
        }
    }

    /// Returns our addresses; every family of the shoot needs one, on a network of its own.
    fn addresses(&self, errors: &mut ConfigErrors) -> Vec<IpNet> {
        let networks = self.networks.all();
        if !(self.addresses.is_empty() && networks.is_empty()) {
            validate_addresses(&self.addresses, "addresses", errors);
        }
        let mut own: Vec<IpNet> = Vec::new();
        for (at, written) in self.addresses.iter().enumerate() {
            let key = format!("addresses[{at}]");
            let Some(address) = own_address(*written) else {
                errors.add(key, format!("{written} is a network, not an address on it"));
                continue;
            };
            let transfer = address.trunc();
            if let Some(network) = networks.iter().find(|network| overlap(&transfer, network)) {
                let why =
                    format!("the transfer network {transfer} overlaps {network} of the shoot");
                errors.add(&key, why);
            }
            own.push(address);
        }
        for (ipv6, family) in [(false, "IPv4"), (true, "IPv6")] {
            let of_family = |network: &&IpNet| network.addr().is_ipv6() == ipv6;
            let lacks = !self
                .addresses
                .iter()
                .any(|own| own.address().is_ipv6() == ipv6);
            if let (true, Some(network)) =
                (lacks && !own.is_empty(), networks.iter().find(of_family))
            {
                let why = format!("an {family} address is needed for {network} of the shoot");
                errors.add("addresses", why);
            }
        }
        own
    }

    fn check_keys(&self, errors: &mut ConfigErrors) {
        let private = &self.keys.private;
        if private.is_empty() {
            errors.add("keys.private", "at least one key is needed");
        }
        if private.len() > MAX_KEYS {
            errors.add("keys.private", format!("more than {MAX_KEYS} keys"));
        }
        let mut seen = BTreeSet::new();
        for (at, path) in private.iter().enumerate() {
            if path.is_empty() {
                errors.add(format!("keys.private[{at}]"), "not a file");
            } else if !seen.insert(path) {
                errors.add(
                    format!("keys.private[{at}]"),
                    format!("{path} is there twice"),
                );
            }
        }
        for (key, path) in [
            ("keys.peers", &self.keys.peers),
            ("proxy.ca", &self.proxy.ca),
            ("proxy.cert", &self.proxy.cert),
            ("proxy.key", &self.proxy.key),
        ] {
            if path.is_empty() {
                errors.add(key, "not a file");
            }
        }
    }

    fn check_proxy(&self, errors: &mut ConfigErrors) {
        let networks = self.networks.all();
        let mut seen = BTreeSet::new();
        for (at, resolver) in self.proxy.resolvers.iter().enumerate() {
            let key = format!("proxy.resolvers[{at}]");
            if !networks
                .iter()
                .any(|network| network.contains(&resolver.ip()))
            {
                errors.add(&key, format!("{resolver} is in none of `networks`"));
            }
            if !seen.insert(resolver) {
                errors.add(&key, format!("{resolver} is there twice"));
            }
        }
        let domain = self.proxy.cluster_domain.trim_end_matches('.');
        let label = |label: &str| {
            (1..=63).contains(&label.len())
                && label
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b == b'-')
        };
        let proper = domain.len() <= 200 && domain.split('.').all(label);
        if !(domain.is_empty() || proper) {
            errors.add("proxy.clusterDomain", format!("`{domain}` is not a domain"));
        }
    }
}

fn tcp_options(overrides: &TcpOverrides, key: &str, errors: &mut ConfigErrors) -> TcpOptions {
    let settings = overrides.over(&TcpSettings::default());
    settings.validate(key, errors);
    let options = TcpOptions::from(&settings);
    if let Err(error) = serve::try_tcp_options(&options) {
        errors.add(key, error);
    }
    options
}

/// Returns an own address in the tunnel with its transfer network; `None` when it is the network's
/// own.
fn own_address(written: TunnelAddress) -> Option<IpNet> {
    let own = IpNet::from(written);
    let whole = own == IpNet::from(own.addr());
    (own.network() != own.addr() || whole).then_some(own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_yields_its_network() {
        for (text, network) in [
            ("192.168.123.1/24", "192.168.123.0/24"),
            ("fd8f:6d53:b97a:1::1/96", "fd8f:6d53:b97a:1::/96"),
            ("10.0.0.1/32", "10.0.0.1/32"),
            ("128.0.0.1/1", "128.0.0.0/1"),
        ] {
            let own = own_address(text.parse().unwrap()).unwrap();
            assert_eq!(own.trunc(), network.parse().unwrap());
            assert_eq!(own.addr().to_string(), text.split_once('/').unwrap().0);
        }
        assert_eq!(own_address("10.0.0.0/8".parse().unwrap()), None);
    }

    #[test]
    fn networks_overlap_when_one_contains_other() {
        let overlap =
            |one: &str, other: &str| overlap(&one.parse().unwrap(), &other.parse().unwrap());
        assert!(overlap("10.0.0.0/8", "10.1.0.0/16"));
        assert!(overlap("10.1.0.0/16", "10.0.0.0/8"));
        assert!(!overlap("10.0.0.0/16", "10.1.0.0/16"));
        assert!(!overlap("10.0.0.0/8", "fd00::/8"));
    }
}

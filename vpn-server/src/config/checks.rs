//! What the values of the file must be.
//!
//! Every mistake is found at once and named by its key.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;

use ipnet::IpNet;
use route::TcpOptions;
use settings::{ConfigErrors, TcpOverrides, TcpSettings};
use tunnel::settings::{
    TunnelAddress, route_id, tcp, validate_addresses, validate_mtu, validate_private_keys,
};

use super::file::{Config, KeyFiles};

/// Tables of the kernel's own (rtnetlink(7)): none, default, main and local.
const OWN_TABLES: [u32; 4] = [0, 253, 254, 255];
/// Most worker threads; a proxy of one shoot needs one.
const MAX_WORKERS: usize = 64;
/// Most flows that the filter can number.
const MAX_FLOWS: usize = 16 << 20;
/// Most own keys: there are numbers for 16 pairs.
const MAX_KEYS: usize = 16;

impl Config {
    /// Adds the defaults of a tunnel to the file's TCP options.
    pub(super) fn fill_tcp(&mut self) {
        self.tcp = tcp(&self.tcp).into();
        self.proxy.tcp = self.proxy.tcp.over(&TcpSettings::default()).into();
    }

    /// Adds to `errors` what is wrong, and works out what the file has in another form. `origin` is
    /// the file itself.
    pub(super) fn validate(&mut self, origin: &Path, errors: &mut ConfigErrors) {
        if OWN_TABLES.contains(&self.table) {
            let why = format!("{} is a table of the kernel's own", self.table);
            errors.add("table", why);
        }
        validate_mtu(self.mtu, errors);
        self.check_numbers(errors);
        self.check_listeners(errors);
        self.queue.validate("queue", errors);
        self.buffers.validate(errors);
        self.networks.validate("networks", errors);
        validate_addresses(&self.addresses, &self.networks.all(), errors);
        self.inner = own_addresses(&self.addresses, errors);
        self.check_keys(errors);
        self.check_proxy(errors);
        self.route = route_id(self.route_id, "routeId", errors);
        self.tcp_options = tcp_options(&self.tcp, "tcp", errors);
        self.proxy.tcp_options = tcp_options(&self.proxy.tcp, "proxy.tcp", errors);
        let private = self.keys.private.iter();
        self.key_files = KeyFiles {
            private: private.map(|path| path.resolve(origin)).collect(),
            peers: self.keys.peers.resolve(origin),
        };
        origin.clone_into(&mut self.origin);
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
            let why = format!("{wrapped} is `listen.udp` already");
            errors.add("listen.wrapped", why);
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

    fn check_keys(&self, errors: &mut ConfigErrors) {
        validate_private_keys(&self.keys.private, errors);
        if self.keys.private.len() > MAX_KEYS {
            errors.add("keys.private", format!("more than {MAX_KEYS} keys"));
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
            let has = |network: &IpNet| network.contains(&resolver.ip());
            if !networks.iter().any(has) {
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

/// Returns our addresses in the tunnel with their transfer networks.
fn own_addresses(written: &[TunnelAddress], errors: &mut ConfigErrors) -> Vec<IpNet> {
    let mut addresses = Vec::new();
    for (at, address) in written.iter().enumerate() {
        let own = IpNet::from(*address);
        if own.network() == own.addr() && own.prefix_len() < own.max_prefix_len() {
            let why = format!("{address} is a network, not an address on it");
            errors.add(format!("addresses[{at}]"), why);
        }
        addresses.push(own);
    }
    addresses
}

//! What the values of the file must be.
//!
//! Every mistake is found at once and named by its key.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use preamble::encode_connect;
use route::{EndpointAddress, TcpOptions};
use settings::{ConfigError, ConfigErrors, HumanDuration, RelPath, TcpSettings};
use tunnel::path::{self, Mode, ProbeParams};
use tunnel::settings::{
    route_id, tcp, validate_addresses, validate_mtu, validate_name, validate_private_keys,
};

use super::file::{File, PathFile, ServerEndpointFile, ServerFile};
use super::{Config, Endpoint, Gateway};

/// Bytes of the largest segment to and from the gateway: what a path of 1280 bytes, the minimum of
/// IPv6, carries. A silent hole would otherwise swallow every full segment.
const MAX_SEGMENT: u32 = 1220;

/// Some target of a CONNECT request, with which its header is judged.
const TARGET: &str = "gateway:1";

/// Limit of pairs of an own key and a server's: there are numbers for as many.
const MAX_PAIRS: usize = 16;
/// NATs are known to forget silent flows of UDP after 30 s.
const MAX_STANDBY: Duration = Duration::from_secs(25);

impl File {
    /// Adds the defaults of a tunnel to the file's TCP options.
    pub(super) fn fill_tcp(&mut self) {
        self.tcp = tcp(&self.tcp).into();
    }

    /// Returns the checked configuration, unless `errors` has the reasons why not. `origin` is the
    /// file itself.
    pub(super) fn check(
        self,
        origin: &Path,
        mut errors: ConfigErrors,
    ) -> Result<Config, ConfigError> {
        validate_mtu(self.mtu, &mut errors);
        validate_name(&self.name, "name", &mut errors);
        self.queue.validate("queue", &mut errors);
        self.networks.validate("networks", &mut errors);
        validate_addresses(&self.addresses, &self.networks.all(), &mut errors);
        self.buffers.validate(&mut errors);
        let path = self.path.check(&mut errors);
        let endpoint = self.endpoint(&mut errors);
        let gateways = self.check_servers(&mut errors);
        self.check_private_keys(&mut errors);
        errors.into_result(origin)?;
        Ok(Config {
            endpoint,
            gateways,
            path: path::Params {
                mode: self.endpoint.transport,
                ..path
            },
            origin: origin.to_owned(),
            file: self,
        })
    }

    fn endpoint(&self, errors: &mut ConfigErrors) -> Endpoint {
        let file = &self.endpoint;
        if file.connect_timeout.0.is_zero() {
            errors.add("endpoint.connectTimeout", "0 would fail every attempt");
        }
        if file.connect_timeout > self.path.dial_timeout {
            let why = "longer than path.dialTimeout, which ends the whole attempt";
            errors.add("endpoint.connectTimeout", why);
        }
        if let Err(error) = encode_connect(TARGET, &[(&file.header, "x")], &mut Vec::new()) {
            errors.add("endpoint.header", error);
        }
        Endpoint {
            header: file.header.clone(),
            family: file.family,
            connect_timeout: file.connect_timeout.0,
            options: self.tcp_options(errors),
            buffers: self.buffers.sizes(),
        }
    }

    /// Returns where a gateway takes TCP and datagrams: what `own` leaves out is of `endpoint`.
    fn reach(
        &self,
        key: &str,
        own: &ServerEndpointFile,
        errors: &mut ConfigErrors,
    ) -> Option<[EndpointAddress; 2]> {
        let all = &self.endpoint;
        let host = [&own.address, &all.address];
        let host = host.into_iter().find(|host| !host.is_empty());
        let tcp = own.tcp_port.or(all.tcp_port).unwrap_or_default();
        let udp = own.udp_port.unwrap_or(all.udp_port);
        let mut ports = [("tcpPort", tcp), ("udpPort", udp)].into_iter();
        if let Some((part, _)) = ports.find(|(_, port)| *port == 0) {
            errors.add(format_args!("{key}.{part}"), "0 is no port");
            return None;
        }
        let needed = || "needed, here or in ENDPOINT".to_owned();
        let both = host
            .ok_or_else(needed)
            .and_then(|host| Ok([gateway(host, tcp)?, gateway(host, udp)?]));
        both.map_err(|why| errors.add(format_args!("{key}.address"), why))
            .ok()
    }

    fn tcp_options(&self, errors: &mut ConfigErrors) -> TcpOptions {
        let options = self.tcp.over(&TcpSettings::default());
        options.validate("tcp", errors);
        let options = TcpOptions {
            max_segment: MAX_SEGMENT,
            ..TcpOptions::from(&options)
        };
        if let Err(error) = serve::try_tcp_options(&options) {
            errors.add("tcp", error);
        }
        options
    }

    /// Returns how each server is reached.
    fn check_servers(&self, errors: &mut ConfigErrors) -> BTreeMap<String, Gateway> {
        if self.servers.is_empty() {
            errors.add("servers", "at least one is needed");
        }
        let mut common = self.servers.iter().map(|server| &server.endpoint);
        let common = common
            .any(Option::is_none)
            .then(ServerEndpointFile::default);
        let common = common.and_then(|own| self.reach("endpoint", &own, errors));
        let mut gateways = BTreeMap::new();
        for (index, server) in self.servers.iter().enumerate() {
            let key = format!("servers[{index}]");
            if self.endpoint.transport != Mode::Udp {
                server.check_value(&key, errors);
            }
            server.check(&key, errors);
            self.check_addresses(server, &key, errors);
            let reached = match &server.endpoint {
                None => common.clone(),
                Some(own) => self.reach(&format!("{key}.endpoint"), own, errors),
            };
            gateways.extend(reached.map(|[tcp, udp]| {
                let value = server.value.clone();
                (server.name.clone(), Gateway { tcp, udp, value })
            }));
        }
        check_distinct(&self.servers, errors);
        gateways
    }

    /// Replies to a server find their way by the transfer networks alone.
    fn check_addresses(&self, server: &ServerFile, key: &str, errors: &mut ConfigErrors) {
        for (index, address) in server.addresses.iter().enumerate() {
            let key = format!("{key}.addresses[{index}]");
            let mut own = self.addresses.iter();
            if own.clone().any(|own| own.address() == *address) {
                errors.add(key, format_args!("{address} is our own"));
            } else if !own.any(|own| own.network().contains(address)) {
                let why = format_args!("{address} is on no transfer network of `addresses`");
                errors.add(key, why);
            }
        }
        for own in &self.addresses {
            let ipv6 = own.address().is_ipv6();
            if !server.addresses.iter().any(|at| at.is_ipv6() == ipv6) {
                let family = if ipv6 { "IPv6" } else { "IPv4" };
                let why = format_args!("an {family} address is needed, as in our own addresses");
                errors.add(format_args!("{key}.addresses"), why);
            }
        }
    }

    fn check_private_keys(&self, errors: &mut ConfigErrors) {
        let files = self.keys.private.list();
        validate_private_keys(&files, errors);
        let theirs = self.servers.iter().map(|server| server.public_keys.len());
        let pairs = theirs.sum::<usize>().saturating_mul(files.len());
        if pairs > MAX_PAIRS {
            let why = format_args!(
                "{pairs} pairs of an own key and a server's key are more than {MAX_PAIRS}"
            );
            errors.add("keys.private", why);
        }
    }
}

impl ServerFile {
    fn check_value(&self, key: &str, errors: &mut ConfigErrors) {
        let key = format!("{key}.value");
        if self.value.is_empty() {
            let why = "needed by TCP: the header's value that leads to this server; of a \
                       single server also in REVERSED_VPN_HEADER";
            return errors.add(key, why);
        }
        // The header's name was judged before.
        if encode_connect(TARGET, &[("X-Value", &self.value)], &mut Vec::new()).is_err() {
            errors.add(key, "cannot be the value of a header");
        }
    }

    fn check(&self, key: &str, errors: &mut ConfigErrors) {
        validate_name(&self.name, &format!("{key}.name"), errors);
        if self.public_keys.is_empty() {
            errors.add(format_args!("{key}.publicKeys"), "at least one is needed");
        }
        let mut seen = BTreeSet::new();
        for (index, public) in self.public_keys.iter().enumerate() {
            if !seen.insert(public) {
                errors.add(format_args!("{key}.publicKeys[{index}]"), "listed twice");
            }
        }
        route_id(self.route_id, &format!("{key}.routeId"), errors);
        if self.preshared_key.as_ref().is_some_and(RelPath::is_empty) {
            errors.add(format_args!("{key}.presharedKey"), "not a file");
        }
    }
}

impl PathFile {
    fn check(&self, errors: &mut ConfigErrors) -> path::Params {
        let mut within = |key: &str, value: HumanDuration, least: u64, most: Duration| {
            if value.0 < Duration::from_millis(least) || value.0 > most {
                let least = HumanDuration::from_millis(least);
                let why = format_args!("must be from {least} to {}", HumanDuration(most));
                errors.add(format_args!("path.{key}"), why);
            }
        };
        let seconds = Duration::from_secs;
        within("interval", self.interval, 50, seconds(5));
        within("standby", self.standby, 100, MAX_STANDBY);
        within("fast", self.fast, 10, seconds(5));
        within("timeoutLeast", self.timeout_least, 10, seconds(5));
        within("timeoutMost", self.timeout_most, 10, seconds(5));
        within("dialTimeout", self.dial_timeout, 100, seconds(60));
        within("retryFirst", self.retry_first, 10, seconds(60));
        within("retryTcp", self.retry_tcp, 10, seconds(300));
        within("retryUdp", self.retry_udp, 10, seconds(300));
        if !(1..=16).contains(&self.misses) {
            errors.add("path.misses", "must be from 1 to 16");
        }
        if self.timeout_least > self.timeout_most {
            errors.add("path.timeoutLeast", "more than timeoutMost");
        }
        let defaults = path::Params::default();
        path::Params {
            probes: ProbeParams {
                interval: self.interval.0,
                standby: self.standby.0,
                fast: self.fast.0,
                misses: self.misses,
                min_timeout: self.timeout_least.0,
                max_timeout: self.timeout_most.0,
                ..defaults.probes
            },
            dial_timeout: self.dial_timeout.0,
            retry_first: self.retry_first.0,
            retry_tcp: self.retry_tcp.0,
            retry_udp: self.retry_udp.0,
            ..defaults
        }
    }
}

/// Returns the address of a host's port.
fn gateway(host: &str, port: u16) -> Result<EndpointAddress, String> {
    let bare = host
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    let address = match bare.unwrap_or(host).parse::<IpAddr>() {
        Ok(ip) => SocketAddr::new(ip, port).to_string(),
        Err(_) if host.contains(':') => {
            return Err(format!(
                "`{host}` is no host; ports are tcpPort and udpPort"
            ));
        }
        Err(_) => format!("{host}:{port}"),
    };
    let parsed = address.parse::<EndpointAddress>();
    parsed.map_err(|error| error.to_string())
}

/// Two servers have nothing in common by which one could be taken for the other.
fn check_distinct(servers: &[ServerFile], errors: &mut ConfigErrors) {
    for (index, server) in servers.iter().enumerate() {
        let before = servers.iter().take(index);
        let mut clash = |what: &str, clashes: &dyn Fn(&ServerFile) -> bool| {
            if let Some(other) = before.clone().find(|other| clashes(other)) {
                let why = format_args!("{:?} has the same", other.name);
                errors.add(format_args!("servers[{index}].{what}"), why);
            }
        };
        clash("name", &|other| other.name == server.name);
        let keys = &server.public_keys;
        clash("publicKeys", &|other| {
            keys.iter().any(|key| other.public_keys.contains(key))
        });
        let (route, value) = (server.route_id, &server.value);
        clash("routeId", &|other| {
            route.is_some() && other.route_id == route
        });
        clash("value", &|other| !value.is_empty() && other.value == *value);
        clash("addresses", &|other| {
            let mut own = server.addresses.iter();
            own.any(|address| other.addresses.contains(address))
        });
    }
}

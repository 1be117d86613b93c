//! What the values of the file must be.
//!
//! Every mistake is found at once and named by its key.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ipnet::IpNet;
use preamble::encode_connect;
use route::{EndpointAddress, TcpOptions};
use serve::Family;
use settings::{ConfigErrors, HumanDuration, RelPath, TcpSettings};
use tunnel::RouteId;
use tunnel::path::{self, Mode, ProbeParams};
use tunnel::settings::{TunnelAddress, overlap, resolve_congestion, tcp, validate_addresses};
use udp::BufferSizes;

use super::file::{FamilyFile, File, PathFile, ServerFile, TransportFile};
use super::{Config, Endpoint, Server};

/// Bytes of the largest segment to and from the gateway: what a path of 1280 bytes, the minimum of
/// IPv6, carries. A silent hole would otherwise swallow every full segment.
const MAX_SEGMENT: u32 = 1220;

/// Bounds of `mtu`: the minimum of IPv6 (RFC 8200 §5), and jumbo frames.
const MTU: RangeInclusive<u16> = 1280..=9000;
/// Limits of servers, and of pairs of an own key and a server's: there are numbers for as many.
const MAX_SERVERS: usize = 64;
const MAX_PAIRS: usize = 16;
/// As long as the name of a pod may be where it becomes a host name (RFC 1123 §2.1).
const MAX_NAME: usize = 63;
/// Bounds of UDP buffers.
const BUFFER: RangeInclusive<u64> = (64 << 10)..=(256 << 20);
/// NATs are known to forget silent flows of UDP after 30 s.
const MAX_STANDBY: Duration = Duration::from_secs(25);

impl File {
    /// Puts the TCP options in effect where the file's were.
    pub(super) fn fill_tcp(&mut self) {
        let mut options = tcp(&self.tcp);
        resolve_congestion(&mut options);
        self.tcp = options.into();
    }

    /// Returns the checked configuration, unless `errors` has the reasons why not. `origin` is the
    /// file itself.
    pub(super) fn check(self, origin: &Path, errors: &mut ConfigErrors) -> Option<Config> {
        if !MTU.contains(&self.mtu) {
            let (least, most) = (MTU.start(), MTU.end());
            errors.add(
                "mtu",
                format_args!("{} is not between {least} and {most}", self.mtu),
            );
        }
        check_name(&self.name, "name", errors);
        self.queue.validate("queue", errors);
        self.networks.validate("networks", errors);
        self.check_inner(errors);
        for (key, size) in [
            ("buffers.receive", self.buffers.receive),
            ("buffers.send", self.buffers.send),
        ] {
            if !BUFFER.contains(&size.0) {
                errors.add(key, "must be from 64KiB to 256MiB");
            }
        }
        let path = self.path.check(errors);
        let endpoint = self.endpoint(errors);
        let servers = self.servers(endpoint.as_ref(), origin, errors);
        let private_keys = self.private_keys(origin, errors);
        Some(Config {
            endpoint: endpoint?,
            servers,
            private_keys,
            path: path::Params {
                mode: self.mode(),
                ..path
            },
            file: self,
        })
    }

    fn mode(&self) -> Mode {
        match self.endpoint.transport {
            TransportFile::Auto => Mode::Auto,
            TransportFile::Tcp => Mode::Tcp,
            TransportFile::Udp => Mode::Udp,
        }
    }

    /// The transfer networks are this tunnel's alone, and each family in it needs one.
    fn check_inner(&self, errors: &mut ConfigErrors) {
        let networks = self.networks.all();
        if networks.is_empty() {
            // What is missing was reported already, and addresses may follow from it.
            return;
        }
        validate_addresses(&self.addresses, "addresses", errors);
        let transfer = self.transfer_networks();
        for (index, own) in transfer.iter().enumerate() {
            for network in &networks {
                if overlap(own, network) {
                    let why = format_args!("the transfer network {own} overlaps {network}");
                    errors.add(format_args!("addresses[{index}]"), why);
                }
            }
        }
        for network in &networks {
            let ipv6 = network.addr().is_ipv6();
            let mut own = self.addresses.iter();
            if !self.addresses.is_empty() && !own.any(|own| own.address().is_ipv6() == ipv6) {
                let family = if ipv6 { "IPv6" } else { "IPv4" };
                let why = format_args!("an {family} address is needed for {network}");
                return errors.add("addresses", why);
            }
        }
    }

    fn transfer_networks(&self) -> Vec<IpNet> {
        let own = self.addresses.iter();
        own.map(TunnelAddress::network).collect()
    }

    fn endpoint(&self, errors: &mut ConfigErrors) -> Option<Endpoint> {
        let file = &self.endpoint;
        if file.connect_timeout.0.is_zero() {
            errors.add("endpoint.connectTimeout", "0 would fail every attempt");
        }
        if file.connect_timeout > self.path.dial_timeout {
            let why = "longer than path.dialTimeout, which ends the whole attempt";
            errors.add("endpoint.connectTimeout", why);
        }
        let tcp_port = file.tcp_port.unwrap_or_default();
        let tcp = self.gateway("endpoint.tcpPort", tcp_port, errors);
        let udp = self.gateway("endpoint.udpPort", file.udp_port, errors);
        if let Some(address) = &tcp
            && let Err(error) = encode_connect(
                &address.to_string(),
                &[(file.header.as_str(), "x")],
                &mut Vec::new(),
            )
        {
            errors.add("endpoint.header", error);
        }
        Some(Endpoint {
            tcp: tcp?,
            udp: udp?,
            header: file.header.clone(),
            family: match file.family {
                FamilyFile::Auto => Family::Auto,
                FamilyFile::Ipv4 => Family::Ipv4,
                FamilyFile::Ipv6 => Family::Ipv6,
            },
            connect_timeout: file.connect_timeout.0,
            options: self.tcp_options(errors),
            buffers: BufferSizes {
                receive: self.buffers.receive.as_usize(),
                send: self.buffers.send.as_usize(),
            },
        })
    }

    fn gateway(&self, key: &str, port: u16, errors: &mut ConfigErrors) -> Option<EndpointAddress> {
        let text = self.endpoint.address.as_str();
        if text.is_empty() {
            // Once is enough for both ports.
            if key == "endpoint.tcpPort" {
                errors.add("endpoint.address", "needed, here or in ENDPOINT");
            }
            return None;
        }
        if port == 0 {
            errors.add(key, "0 is no port");
            return None;
        }
        let bare = text
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'));
        let address = match bare.unwrap_or(text).parse::<IpAddr>() {
            Ok(ip) => format!("{}", std::net::SocketAddr::new(ip, port)),
            Err(_) if text.contains(':') => {
                if key == "endpoint.tcpPort" {
                    let why = format_args!("`{text}` is no host; ports are tcpPort and udpPort");
                    errors.add("endpoint.address", why);
                }
                return None;
            }
            Err(_) => format!("{text}:{port}"),
        };
        let parsed = address.parse();
        parsed
            .map_err(|error| {
                if key == "endpoint.tcpPort" {
                    errors.add("endpoint.address", error);
                }
            })
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

    fn servers(
        &self,
        endpoint: Option<&Endpoint>,
        origin: &Path,
        errors: &mut ConfigErrors,
    ) -> Vec<Server> {
        if self.servers.is_empty() {
            errors.add("servers", "at least one is needed");
        }
        if self.servers.len() > MAX_SERVERS {
            errors.add("servers", format_args!("more than {MAX_SERVERS}"));
        }
        let transfer = self.transfer_networks();
        let servers = self.servers.iter().enumerate();
        let servers = servers.map(|(index, file)| {
            let key = format!("servers[{index}]");
            if let Some(endpoint) = endpoint.filter(|_| self.mode() != Mode::Udp) {
                file.check_value(&key, endpoint, errors);
            }
            let server = file.server(&key, origin, errors);
            self.check_addresses(&server, &key, &transfer, errors);
            server
        });
        let servers = servers.collect::<Vec<_>>();
        check_distinct(&servers, errors);
        servers
    }

    /// Replies to a server find their way by the transfer networks alone.
    fn check_addresses(
        &self,
        server: &Server,
        key: &str,
        transfer: &[IpNet],
        errors: &mut ConfigErrors,
    ) {
        for (index, address) in server.addresses.iter().enumerate() {
            let key = format!("{key}.addresses[{index}]");
            if self.addresses.iter().any(|own| own.address() == *address) {
                errors.add(key, format_args!("{address} is our own"));
            } else if !transfer.iter().any(|network| network.contains(address)) {
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

    fn private_keys(&self, origin: &Path, errors: &mut ConfigErrors) -> Vec<PathBuf> {
        let files = self.keys.private.list();
        if files.is_empty() {
            errors.add("keys.private", "at least one key is needed");
        }
        let theirs = self.servers.iter().map(|server| server.public_keys.len());
        let pairs = theirs.sum::<usize>().saturating_mul(files.len());
        if pairs > MAX_PAIRS {
            let why = format_args!(
                "{pairs} pairs of an own key and a server's key are more than {MAX_PAIRS}"
            );
            errors.add("keys.private", why);
        }
        let mut seen = BTreeSet::new();
        for file in &files {
            if file.is_empty() {
                errors.add("keys.private", "an empty name is no file");
            } else if !seen.insert(file) {
                errors.add("keys.private", format_args!("{file} is listed twice"));
            }
        }
        files.iter().map(|file| file.resolve(origin)).collect()
    }
}

impl ServerFile {
    fn check_value(&self, key: &str, endpoint: &Endpoint, errors: &mut ConfigErrors) {
        let key = format!("{key}.value");
        if self.value.is_empty() {
            let why = "needed by TCP: the header's value that leads to this server; of a \
                       single server also in REVERSED_VPN_HEADER";
            return errors.add(key, why);
        }
        let target = endpoint.tcp.to_string();
        // The header's name was judged before.
        if encode_connect(&target, &[("X-Value", &self.value)], &mut Vec::new()).is_err() {
            errors.add(key, "cannot be the value of a header");
        }
    }

    fn server(&self, key: &str, origin: &Path, errors: &mut ConfigErrors) -> Server {
        check_name(&self.name, &format!("{key}.name"), errors);
        if self.public_keys.is_empty() {
            errors.add(format_args!("{key}.publicKeys"), "at least one is needed");
        }
        let mut public_keys = Vec::new();
        for (index, text) in self.public_keys.iter().enumerate() {
            match text.parse() {
                Ok(public) if public_keys.contains(&public) => {
                    errors.add(format_args!("{key}.publicKeys[{index}]"), "listed twice");
                }
                Ok(public) => public_keys.push(public),
                Err(error) => {
                    let error: tunnel::keys::KeyTextError = error;
                    errors.add(format_args!("{key}.publicKeys[{index}]"), error);
                }
            }
        }
        let route = self.route_id.and_then(RouteId::new);
        if let (Some(number), None) = (self.route_id, route) {
            let why = format_args!("{number} is not between 1 and {}", RouteId::MAX);
            errors.add(format_args!("{key}.routeId"), why);
        }
        if self.preshared_key.as_ref().is_some_and(RelPath::is_empty) {
            let why = "an empty name is no file";
            errors.add(format_args!("{key}.presharedKey"), why);
        }
        let preshared = self.preshared_key.as_ref();
        Server {
            name: self.name.clone(),
            public_keys,
            preshared_key: preshared.map(|file| file.resolve(origin)),
            route,
            value: self.value.clone(),
            addresses: self.addresses.clone(),
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

/// Names are labels of metrics, and sent to the other end.
fn check_name(name: &str, key: &str, errors: &mut ConfigErrors) {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if !(1..=MAX_NAME).contains(&name.len()) || !name.bytes().all(fits) {
        let why = format_args!(
            "`{}` is no name: letters, digits, `-`, `_` and `.`, at most {MAX_NAME}",
            name.escape_debug()
        );
        errors.add(key, why);
    }
}

/// Two servers have nothing in common by which one could be taken for the other.
fn check_distinct(servers: &[Server], errors: &mut ConfigErrors) {
    for (index, server) in servers.iter().enumerate() {
        let before = servers.iter().take(index);
        let mut clash = |what: &str, clashes: &dyn Fn(&Server) -> bool| {
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
        let (route, value) = (server.route, &server.value);
        clash("routeId", &|other| route.is_some() && other.route == route);
        clash("value", &|other| !value.is_empty() && other.value == *value);
        clash("addresses", &|other| {
            let mut own = server.addresses.iter();
            own.any(|address| other.addresses.contains(address))
        });
    }
}

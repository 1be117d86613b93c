//! Routes from annotations of Services, for clusters with neither Istio nor the Gateway API.
//!
//! The annotations, and which port each leads to: `docs/migration.md`. An element that cannot be
//! read is reported, by annotation and place, and left out; the others hold. So are the names under
//! which Gardener reaches Services of other namespaces by CONNECT.

use route::{IpPrefix, RouteMatch, normal_server_name, parse_public_key};

use super::claims::{Claims, Context, Source, Target};
use super::select::GATEWAYS;
use crate::plan::Reason;
use crate::state::{ClusterName, Kind, MAX_ELEMENTS, ObjectKey, Protocol, Service, in_namespace};

const PREFIX: &str = "rhizome.gardener.cloud/";
const SERVER_NAMES: &str = "rhizome.gardener.cloud/server-names";
const DESTINATIONS: &str = "rhizome.gardener.cloud/destinations";
const CONNECT: &str = "rhizome.gardener.cloud/connect-destination";
const PUBLIC_KEYS: &str = "rhizome.gardener.cloud/wireguard-public-keys";
const ROUTE_ID: &str = "rhizome.gardener.cloud/wireguard-route-id";
const PORT: &str = "rhizome.gardener.cloud/port";

const KNOWN: [&str; 7] = [
    SERVER_NAMES,
    DESTINATIONS,
    CONNECT,
    PUBLIC_KEYS,
    ROUTE_ID,
    GATEWAYS,
    PORT,
];

/// What stands behind a shoot's name in the second CONNECT value of its API server.
const SOCKET: &str = "--kube-apiserver-socket";

/// The port of WireGuard servers for datagrams that a gateway wraps.
const WRAPPED_PORT: u16 = 51821;

pub(super) fn services(cx: Context<'_>) -> Claims {
    let mut claims = Claims::default();
    for (key, service) in in_namespace(&cx.state.services, cx.namespace) {
        let mut names = service.annotations.keys();
        if !names.any(|name| name.starts_with(PREFIX)) {
            continue;
        }
        let source = Source::new(Kind::Service, key, service.created);
        let mut own = Annotated {
            key,
            service,
            problems: Vec::new(),
        };
        let routes = own.routes();
        for index in own.gateways(cx) {
            let routes = routes.iter().cloned();
            let own = routes.map(|(matches, target)| source.claim(index, matches, target));
            claims.routes.extend(own);
        }
        for (reason, message) in own.problems {
            claims.problem(&source.object, reason, &message);
        }
    }
    claims
}

struct Annotated<'w> {
    key: &'w ObjectKey,
    service: &'w Service,
    problems: Vec<(Reason, String)>,
}

impl<'w> Annotated<'w> {
    fn routes(&mut self) -> Vec<(RouteMatch, Target)> {
        let mut routes = Vec::new();
        self.check_keys();
        let names = self.list(SERVER_NAMES, |text| {
            normal_server_name(text).map_err(|error| error.to_string())
        });
        if !names.is_empty()
            && let Some(target) = self.tcp_target(SERVER_NAMES)
        {
            routes.push((RouteMatch::ServerNames(names), target));
        }
        let destinations = self.list(DESTINATIONS, destination);
        if !destinations.is_empty()
            && let Some(target) = self.tcp_target(DESTINATIONS)
        {
            let each = destinations
                .into_iter()
                .map(|(prefix, port)| RouteMatch::Destinations {
                    prefixes: vec![prefix],
                    port,
                });
            routes.extend(each.map(|matches| (matches, target.clone())));
        }
        for value in self.list(CONNECT, |text| connect(text, &self.key.namespace)) {
            let named = self.named_target(&value);
            if let Some(target) = named.or_else(|| self.tcp_target(CONNECT)) {
                routes.push((RouteMatch::ConnectDestinations(vec![value]), target));
            }
        }
        self.wireguard(&mut routes);
        routes
    }

    fn wireguard(&mut self, routes: &mut Vec<(RouteMatch, Target)>) {
        let public_keys = self.list(PUBLIC_KEYS, |text| {
            parse_public_key(text).map_err(|error| error.to_string())
        });
        let route_id = self.list(ROUTE_ID, route_id);
        if route_id.len() > 1 {
            self.invalid(ROUTE_ID, "there must be one number");
        }
        let route_id = route_id.first().copied();
        if public_keys.is_empty() && route_id.is_none() {
            return;
        }
        let udp = self
            .service
            .ports
            .iter()
            .filter(|port| port.protocol == Protocol::Udp);
        let ports: Vec<u16> = udp.map(|port| port.port).collect();
        let port = match ports.as_slice() {
            [port] => *port,
            ports if ports.contains(&WRAPPED_PORT) => WRAPPED_PORT,
            _ => {
                let what = format!("WireGuard needs UDP port {WRAPPED_PORT} or a single UDP port");
                self.problems.push((Reason::RouteNotTranslated, what));
                return;
            }
        };
        let target = Target {
            service: self.key.clone(),
            port,
            protocol: Protocol::Udp,
        };
        let matches = RouteMatch::WireGuard {
            public_keys,
            route_id,
        };
        routes.push((matches, target));
    }

    /// Returns the places of the gateways that the Service is for.
    fn gateways(&mut self, cx: Context<'_>) -> Vec<usize> {
        if !self.service.annotations.contains_key(GATEWAYS) {
            return cx.gateways().map(|(index, _)| index).collect();
        }
        self.list(GATEWAYS, |name| {
            let found = cx.gateways().find(|(_, entry)| entry.name == name);
            let (index, _) = found.ok_or("there is no such gateway")?;
            Ok(index)
        })
    }

    /// Reads the elements of a list; those that cannot be read are reported and left out.
    fn list<T: PartialEq>(
        &mut self,
        name: &str,
        read: impl Fn(&str) -> Result<T, String>,
    ) -> Vec<T> {
        let mut read_ones = Vec::new();
        let Some(text) = self.service.annotations.get(name) else {
            return read_ones;
        };
        for (place, element) in elements(text) {
            if place > MAX_ELEMENTS {
                self.invalid(name, &format!("there may be {MAX_ELEMENTS} elements"));
                break;
            }
            let one = match element {
                "" => Err("it is empty".to_owned()),
                // Gateways refuse longer names and values, and what else is sent with them.
                long if long.len() > xds::MAX_NAME_BYTES => {
                    Err(format!("it is longer than {} bytes", xds::MAX_NAME_BYTES))
                }
                element => read(element).map_err(|why| format!("{element:?}: {why}")),
            };
            match one {
                Ok(one) if !read_ones.contains(&one) => read_ones.push(one),
                Ok(_) => {}
                Err(why) => self.wrong(name, place, &why),
            }
        }
        read_ones
    }

    /// Returns the port that a value names, when it is one of this Service.
    fn named_target(&self, value: &str) -> Option<Target> {
        if self.service.annotations.contains_key(PORT) {
            return None;
        }
        let name = ClusterName::parse(value).filter(|name| name.service == *self.key)?;
        let mut tcp = self.tcp_ports();
        tcp.any(|(port, _)| port == name.port)
            .then(|| Target::tcp(self.key.clone(), name.port))
    }

    fn tcp_target(&mut self, asked_by: &str) -> Option<Target> {
        let ports: Vec<_> = self.tcp_ports().collect();
        let wanted = self.service.annotations.get(PORT);
        let port = if let Some(wanted) = wanted {
            let found = ports
                .iter()
                .find(|(port, name)| port.to_string() == *wanted || *name == wanted);
            if found.is_none() {
                self.invalid(PORT, &format!("the Service has no TCP port {wanted:?}"));
                return None;
            }
            found
        } else if let [port] = ports.as_slice() {
            Some(port)
        } else {
            let by_number = ports.iter().find(|(port, _)| *port == 443);
            by_number.or_else(|| ports.iter().find(|(_, name)| *name == "https"))
        };
        let Some((port, _)) = port else {
            let what = format!("{asked_by}: name the port with {PORT}");
            self.problems.push((Reason::RouteNotTranslated, what));
            return None;
        };
        Some(Target::tcp(self.key.clone(), *port))
    }

    fn tcp_ports(&self) -> impl Iterator<Item = (u16, &'w str)> + use<'w> {
        let ports = self.service.ports.iter();
        let tcp = ports.filter(|port| port.protocol == Protocol::Tcp);
        tcp.map(|port| (port.port, port.name.as_str()))
    }

    /// A mistyped annotation would otherwise ask for nothing, in silence.
    fn check_keys(&mut self) {
        let own = self.service.annotations.keys();
        for key in own.filter(|key| key.starts_with(PREFIX)) {
            if !KNOWN.contains(&key.as_str()) {
                self.invalid(key, "there is no such annotation");
            }
        }
    }

    fn invalid(&mut self, name: &str, why: &str) {
        let problem = (Reason::InvalidAnnotation, format!("{name}: {why}"));
        self.problems.push(problem);
    }

    fn wrong(&mut self, name: &str, place: usize, why: &str) {
        self.invalid(name, &format!("element {place}: {why}"));
    }
}

/// Returns the server names of a Service as they are written.
pub(super) fn server_names(service: &Service) -> impl Iterator<Item = &str> {
    let text = service.annotations.get(SERVER_NAMES);
    let all = text.map_or("", String::as_str);
    elements(all).map(|(_, element)| element)
}

/// Reads a CONNECT destination for a Service of this namespace. Those that are shaped as Istio
/// names clusters, and Gardener the API servers whose TLS ended in Envoy, are of the namespace they
/// say: node proxies of that shoot trust that they lead there.
fn connect(text: &str, namespace: &str) -> Result<String, String> {
    let of = match text.strip_suffix(SOCKET) {
        Some(shoot) => Some(shoot.to_owned()),
        None if text.starts_with("outbound|") => {
            let name = ClusterName::parse(text).ok_or("no TCP port of a Service is called so")?;
            Some(name.service.namespace.to_string())
        }
        None => None,
    };
    match of {
        Some(of) if of != namespace => Err(format!("only a Service in namespace {of} may have it")),
        Some(_) | None => Ok(text.to_owned()),
    }
}

/// Returns the elements of a list with their places, from 1.
fn elements(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.split(',')
        .enumerate()
        .map(|(place, element)| (place + 1, element.trim()))
}

/// Reads `address`, `prefix`, `address:port`, `prefix:port` or `[prefix]:port`.
fn destination(text: &str) -> Result<(IpPrefix, Option<u16>), String> {
    let (prefix, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (prefix, port) = rest.split_once(']').ok_or("the bracket is not closed")?;
            let port = port
                .strip_prefix(':')
                .ok_or("a port is missing behind the bracket")?;
            (prefix, Some(port))
        }
        // More than one colon: an IPv6 address, whose port needs brackets.
        None => match text.split_once(':') {
            Some((prefix, port)) if !port.contains(':') => (prefix, Some(port)),
            Some(_) | None => (text, None),
        },
    };
    let prefix: Result<IpPrefix, _> = prefix.parse();
    let prefix = prefix.map_err(|error| error.to_string())?;
    let number = |text| digits(text).and_then(|own| u16::try_from(own).ok());
    let port = port.map(|text| number(text).ok_or("not a port"));
    Ok((prefix, port.transpose()?))
}

fn route_id(text: &str) -> Result<u32, String> {
    let most = RouteMatch::MAX_ROUTE_ID;
    let id = digits(text).filter(|id| *id <= most);
    id.ok_or_else(|| format!("not a number from 1 to {most}"))
}

/// Reads a decimal number greater than 0, of digits alone.
fn digits(text: &str) -> Option<u32> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|number| plain && *number > 0)
}

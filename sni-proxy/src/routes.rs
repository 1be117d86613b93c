//! The routing file: clusters and routes as YAML, translated into the parameters of a snapshot.
//!
//! ```text
//!     file ─▶ serde_json, else settings::yaml ─▶ RoutesFile ─▶ TableSpec ─▶ route::Snapshot, or every fault
//! ```
//!
//! Checks what only the file can be wrong about; what routes may not contradict is checked where
//! the snapshot is built.

mod terminate;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use route::{
    Balance, BuildErrors, ClusterSpec, EndpointAddressError, EndpointSpec, Handler, OutlierParams,
    ProxyVersion, RouteMatch, RouteSpec, Snapshot, TableSpec, TcpOptions, parse_public_key,
};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use settings::{ConfigError, ConfigErrors, HumanDuration, TcpOverrides, TcpSettings, yaml};

use self::terminate::TerminateFile;
use crate::config::validate_tcp;
use crate::terminate::{Termination, Terminations};

/// Why a routing file is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RoutesError {
    /// Its clusters and routes contradict each other.
    #[error("{0}")]
    Build(PathBuf, #[source] BuildErrors),
    /// It cannot be read or understood.
    #[error(transparent)]
    File(#[from] ConfigError),
    /// The secrets of a terminating route, by what it matches, cannot be used.
    #[error("{0}: the route of {1}: {2}")]
    Secrets(PathBuf, String, String),
}

/// The routing file of `sni-proxy`.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct RoutesFile {
    /// Where connections may go.
    clusters: Vec<ClusterFile>,
    /// What goes where; the most specific match wins, whatever the order.
    #[serde(default)]
    routes: Vec<RouteFile>,
}

/// A named set of endpoints.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct ClusterFile {
    /// Name that routes, logs and metrics use.
    name: String,
    /// Its addresses.
    endpoints: Vec<EndpointFile>,
    /// How endpoints are chosen.
    #[serde(default, with = "BalanceFile")]
    balance: Balance,
    /// Prefer endpoints of the gateway's own zone; spill over when they fail.
    #[serde(default = "settings::yes")]
    zone_aware: bool,
    /// Longest time for one attempt to connect.
    #[serde(default = "five_seconds")]
    connect_timeout: HumanDuration,
    /// Attempts on other endpoints after the first, before any byte was sent.
    #[serde(default = "two")]
    connect_retries: u32,
    /// Connections at once; 0 for no limit.
    #[serde(default)]
    max_connections: u32,
    /// When endpoints that cannot be connected are left out for a while.
    #[serde(default)]
    outlier_detection: OutlierFile,
    /// A PROXY header toward the endpoint.
    #[serde(default)]
    send_proxy_protocol: SendProxyProtocol,
    /// Overrides of the TCP options.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tcp: Option<Box<TcpOverrides>>,
}

/// One address of a cluster.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct EndpointFile {
    /// IP address or host name, with port. Names are resolved again by their time to live.
    address: String,
    /// Zone it runs in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    zone: Option<String>,
    /// Its share of connections.
    #[serde(default = "one")]
    weight: u32,
}

/// How an endpoint is chosen.
#[derive(Deserialize, JsonSchema, Serialize)]
#[serde(remote = "Balance", rename_all = "kebab-case")]
enum BalanceFile {
    /// The one with the fewest connections for its weight; among equals one at random.
    LeastRequest,
    /// Always the same for one client address.
    Maglev,
    /// Any.
    Random,
    /// One after the other.
    RoundRobin,
}

/// When endpoints that cannot be connected are left out for a while.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct OutlierFile {
    /// Failures in a row until an endpoint is left out; 0 for never.
    consecutive_connect_failures: u32,
    /// For how long the first time; longer when it happens again.
    ejection: HumanDuration,
    /// Share of a cluster's endpoints that may be left out at once.
    max_ejected_percent: u8,
}

impl Default for OutlierFile {
    fn default() -> Self {
        Self {
            consecutive_connect_failures: 5,
            ejection: HumanDuration(Duration::from_secs(30)),
            max_ejected_percent: 100,
        }
    }
}

/// A PROXY header toward the endpoint.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "kebab-case")]
enum SendProxyProtocol {
    /// None.
    #[default]
    Off,
    /// Version 1, text.
    V1,
    /// Version 2, binary.
    V2,
}

/// One rule; exactly one of `serverNames`, `destinations`, `connectDestinations` and `wireguard`.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct RouteFile {
    /// TLS server names: exact, `*.x` for one or more labels in front of `.x`, or `*`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    server_names: Vec<String>,
    /// Destination networks of node proxies' PROXY headers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    destinations: Vec<String>,
    /// Destination port; any when absent. Only with `destinations`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    port: Option<u16>,
    /// Values of a CONNECT request's destination header.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    connect_destinations: Vec<String>,
    /// WireGuard servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    wireguard: Option<WireGuardFile>,
    /// Name of the cluster it leads to.
    cluster: String,
    /// Networks of clients that may use it; all when absent. An empty list is an error, since it
    /// could be meant either way.
    #[serde(
        default,
        deserialize_with = "given",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(with = "Vec<String>")]
    allow_sources: Option<Vec<String>>,
    /// End TLS here, and balance requests instead of connections. Only with `serverNames` or
    /// `connectDestinations`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    terminate: Option<Box<TerminateFile>>,
}

/// WireGuard servers: their keys, or the number of their datagrams, or both.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct WireGuardFile {
    /// Public keys of the servers, in base64 as `wg pubkey` writes them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    public_keys: Vec<String>,
    /// Number that datagrams of clients who know it carry, from 1 to 1048575.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    route_id: Option<u32>,
}

/// Reads a list that is there: null, which templates make of an empty one, is no list.
fn given<'de, D>(deserializer: D) -> Result<Option<Vec<String>>, D::Error>
where
    D: Deserializer<'de>,
{
    Vec::deserialize(deserializer).map(Some)
}

fn one() -> u32 {
    1
}

fn two() -> u32 {
    2
}

fn five_seconds() -> HumanDuration {
    HumanDuration(Duration::from_secs(5))
}

/// Reads the routing file at `path` and builds the snapshot that follows `previous`; `tcp` are the
/// process's own socket options. What terminates without usable secrets is passed through.
pub(crate) fn load(
    path: &Path,
    tcp: &TcpSettings,
    terminations: &Terminations,
    previous: Option<&Snapshot>,
) -> Result<Snapshot, RoutesError> {
    let generation = previous.map_or(1, |snapshot| snapshot.generation() + 1);
    let bytes = yaml::read(path)?;
    // A file that is JSON is read several times as fast so. What serde_json refuses, for whatever
    // reason, is read again as YAML, so that an error has one wording.
    let file: RoutesFile = match serde_json::from_slice(&bytes) {
        Ok(file) => file,
        Err(_) => yaml::from_slice(&bytes, path)?,
    };
    let spec = file.into_spec(path, tcp, terminations)?;
    Snapshot::build(spec, generation, previous)
        .map_err(|errors| RoutesError::Build(path.to_owned(), errors))
}

/// Tells which terminating route has no usable secrets.
pub(crate) fn check_secrets(path: &Path, snapshot: &Snapshot) -> Result<(), RoutesError> {
    for route in snapshot.routes() {
        let own = route.handler().and_then(Handler::get::<Termination>);
        if let Some(error) = own.and_then(|own| own.secrets.error()) {
            let matches = route.matches().to_string();
            return Err(RoutesError::Secrets(path.to_owned(), matches, error));
        }
    }
    Ok(())
}

impl RoutesFile {
    fn into_spec(
        self,
        path: &Path,
        tcp: &TcpSettings,
        terminations: &Terminations,
    ) -> Result<TableSpec, ConfigError> {
        let mut errors = ConfigErrors::new();
        let mut options = SharedOptions {
            base: tcp,
            known: BTreeMap::new(),
        };
        let clusters = self.clusters.into_iter().enumerate();
        let clusters = clusters.map(|(at, cluster)| cluster.spec(at, &mut options, &mut errors));
        let clusters: Vec<ClusterSpec> = clusters.collect();
        let sending = clusters
            .iter()
            .filter(|own| own.send_proxy_protocol.is_some());
        let sending: BTreeSet<&str> = sending.map(|own| &*own.name).collect();
        let handlers = Handlers {
            directory: path.parent().unwrap_or_else(|| Path::new("")),
            terminations,
            sending,
        };
        let routes = self.routes.into_iter().enumerate();
        let routes = routes.filter_map(|(at, route)| route.spec(at, &handlers, &mut errors));
        let routes = routes.collect();
        errors.into_result(path)?;
        Ok(TableSpec { clusters, routes })
    }
}

/// What routes with `terminate` are read with.
struct Handlers<'a> {
    /// Where the routing file is: paths in it are relative to that.
    directory: &'a Path,
    terminations: &'a Terminations,
    /// Clusters with a PROXY header.
    sending: BTreeSet<&'a str>,
}

/// Socket options of clusters, one value for all clusters that ask for the same.
struct SharedOptions<'a> {
    base: &'a TcpSettings,
    known: BTreeMap<String, Arc<TcpOptions>>,
}

impl SharedOptions<'_> {
    fn of(
        &mut self,
        overrides: &TcpOverrides,
        key: &str,
        errors: &mut ConfigErrors,
    ) -> Arc<TcpOptions> {
        let settings = overrides.over(self.base);
        let shared = self
            .known
            .entry(format!("{settings:?}"))
            .or_insert_with(|| {
                validate_tcp(&settings, key, errors);
                Arc::new(TcpOptions::from(&settings))
            });
        Arc::clone(shared)
    }
}

impl ClusterFile {
    fn spec(
        self,
        at: usize,
        options: &mut SharedOptions<'_>,
        errors: &mut ConfigErrors,
    ) -> ClusterSpec {
        // Formatted only for an error: there are very many clusters.
        let key = || format!("clusters[{at}]");
        if self.connect_timeout.0.is_zero() {
            let key = format!("{}.connectTimeout", key());
            errors.add(key, "0 would fail every attempt");
        }
        if self.outlier_detection.max_ejected_percent > 100 {
            let key = format!("{}.outlierDetection.maxEjectedPercent", key());
            errors.add(key, "more than 100");
        }
        let mut endpoints = Vec::with_capacity(self.endpoints.len());
        for (index, endpoint) in self.endpoints.into_iter().enumerate() {
            match endpoint.spec() {
                Ok(endpoint) => endpoints.push(endpoint),
                Err(error) => errors.add(format!("{}.endpoints[{index}].address", key()), error),
            }
        }
        let tcp = self.tcp.as_ref();
        ClusterSpec {
            name: self.name,
            endpoints,
            balance: self.balance,
            zone_aware: self.zone_aware,
            connect_timeout: self.connect_timeout.0,
            connect_retries: self.connect_retries,
            max_connections: self.max_connections,
            outlier: self.outlier_detection.params(),
            send_proxy_protocol: match self.send_proxy_protocol {
                SendProxyProtocol::Off => None,
                SendProxyProtocol::V1 => Some(ProxyVersion::V1),
                SendProxyProtocol::V2 => Some(ProxyVersion::V2),
            },
            tcp: tcp.map(|tcp| options.of(tcp, &format!("{}.tcp", key()), errors)),
        }
    }
}

impl EndpointFile {
    fn spec(self) -> Result<EndpointSpec, EndpointAddressError> {
        Ok(EndpointSpec {
            zone: self.zone.map(Into::into),
            weight: self.weight,
            ..EndpointSpec::new(self.address.parse()?)
        })
    }
}

impl OutlierFile {
    fn params(&self) -> Option<OutlierParams> {
        (self.consecutive_connect_failures > 0).then_some(OutlierParams {
            consecutive_connect_failures: self.consecutive_connect_failures,
            ejection: self.ejection.0,
            max_ejected_percent: self.max_ejected_percent,
        })
    }
}

impl RouteFile {
    fn spec(
        self,
        at: usize,
        handlers: &Handlers<'_>,
        errors: &mut ConfigErrors,
    ) -> Option<RouteSpec> {
        let key = || format!("routes[{at}]");
        if self.allow_sources.as_ref().is_some_and(Vec::is_empty) {
            let why = "an empty list would allow no client; without the key all are allowed";
            errors.add(format!("{}.allowSources", key()), why);
        }
        let allow_sources = self.allow_sources.as_deref().unwrap_or_default();
        let sources_key = format_args!("routes[{at}].allowSources");
        let allow_sources = errors.parse_each(sources_key, allow_sources, str::parse);
        let kinds = [
            !self.server_names.is_empty(),
            !self.destinations.is_empty(),
            !self.connect_destinations.is_empty(),
            self.wireguard.is_some(),
        ];
        if kinds.iter().filter(|given| **given).count() != 1 {
            let one = "exactly one of serverNames, destinations, connectDestinations and \
                       wireguard is needed";
            errors.add(key(), one);
            return None;
        }
        let handler = self.terminate.as_ref().and_then(|terminate| {
            let key = format!("{}.terminate", key());
            if self.server_names.is_empty() && self.connect_destinations.is_empty() {
                errors.add(&*key, "only serverNames and connectDestinations have it");
                return None;
            }
            if handlers.sending.contains(&*self.cluster) {
                errors.add(&*key, "its cluster has sendProxyProtocol");
                return None;
            }
            let params = terminate.params(handlers.directory, &self.cluster, &key, errors)?;
            Some(Handler::new(handlers.terminations.of(params)))
        });
        if self.port.is_some() && self.destinations.is_empty() {
            errors.add(format!("{}.port", key()), "only destinations have a port");
        }
        let matches = if !self.server_names.is_empty() {
            RouteMatch::ServerNames(self.server_names)
        } else if !self.destinations.is_empty() {
            let key = format_args!("routes[{at}].destinations");
            RouteMatch::Destinations {
                prefixes: errors.parse_each(key, &self.destinations, str::parse),
                port: self.port,
            }
        } else if let Some(wireguard) = &self.wireguard {
            wireguard.matches(&format!("{}.wireguard", key()), errors)
        } else {
            RouteMatch::ConnectDestinations(self.connect_destinations)
        };
        Some(RouteSpec {
            allow_sources,
            handler,
            ..RouteSpec::new(matches, self.cluster)
        })
    }
}

impl WireGuardFile {
    fn matches(&self, key: &str, errors: &mut ConfigErrors) -> RouteMatch {
        let key = format_args!("{key}.publicKeys");
        RouteMatch::WireGuard {
            public_keys: errors.parse_each(key, &self.public_keys, parse_public_key),
            route_id: self.route_id,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(route: &str) -> Result<RouteSpec, ConfigError> {
        let text = format!("clusters: []\nroutes: [{route}]");
        let path = Path::new("routes.yaml");
        let file: RoutesFile = yaml::from_str(&text, path)?;
        let mut spec = file.into_spec(path, &TcpSettings::default(), &Terminations::default())?;
        Ok(spec.routes.remove(0))
    }

    #[test]
    fn wireguard_servers_are_read_and_checked() {
        let key = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
        let route =
            format!("{{ wireguard: {{ publicKeys: [{key:?}], routeId: 17 }}, cluster: c }}");
        let RouteMatch::WireGuard {
            public_keys,
            route_id,
        } = read(&route).unwrap().matches
        else {
            panic!("another match")
        };
        assert_eq!((public_keys[0][31], route_id), (31, Some(17)));

        let cut = route.replace("h8=", "h9=");
        let wanted = "routes[0].wireguard.publicKeys[0]: not a WireGuard public key";
        assert!(read(&cut).unwrap_err().to_string().contains(wanted));
        let two = route.replace("cluster", "serverNames: [a], cluster");
        let refused = read(&two).unwrap_err().to_string();
        assert!(refused.contains("exactly one of"));
    }
}

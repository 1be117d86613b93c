//! From a patch as it is written to what it comes to.

use std::time::Duration;

use route::{IpPrefix, IpPrefixError};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::matcher::Matcher;
use super::{
    Access, ChainPatch, ClusterName, ConnectPatch, ConnectValue, FilterPatch, Patterns,
    Restriction, socket_of,
};

const RBAC: &str = "rbac.v3.RBAC";

/// Fields of a listener that change nothing about where a connection goes.
const LISTENER_FIELDS: [&str; 9] = [
    "name",
    "listener_filters",
    "listener_filters_timeout",
    "per_connection_buffer_limit_bytes",
    "socket_options",
    "tcp_backlog_size",
    "connection_balance_config",
    "enable_reuse_port",
    "access_log",
];

/// Fields of a cluster that change nothing about where a connection goes.
const CLUSTER_FIELDS: [&str; 6] = [
    "name",
    "per_connection_buffer_limit_bytes",
    "http2_protocol_options",
    "typed_extension_protocol_options",
    "upstream_connection_options",
    "preconnect_policy",
];

/// Fields of an HTTP connection manager that say how HTTP is spoken, not where it goes.
const HTTP_FIELDS: [&str; 12] = [
    "@type",
    "stat_prefix",
    "access_log",
    "http_protocol_options",
    "http2_protocol_options",
    "common_http_protocol_options",
    "upgrade_configs",
    "stream_idle_timeout",
    "request_timeout",
    "drain_timeout",
    "strip_trailing_host_dot",
    "route_config",
];

/// Fields of a TCP proxy that are known.
const PROXY_FIELDS: [&str; 6] = [
    "@type",
    "stat_prefix",
    "cluster",
    "access_log",
    "idle_timeout",
    "max_downstream_connection_duration",
];

/// One patch of an `EnvoyFilter`, as it is written.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Patch {
    apply_to: String,
    #[serde(deserialize_with = "normalized")]
    r#match: Value,
    patch: PatchBody,
}

/// How an `EnvoyFilter` patches.
#[derive(Default, Deserialize)]
#[serde(default)]
struct PatchBody {
    operation: String,
    #[serde(deserialize_with = "normalized")]
    value: Value,
}

/// Reads patches and returns what they come to, route by route.
pub(super) fn patches<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<FilterPatch>, D::Error> {
    let patches = Vec::<Patch>::deserialize(from)?;
    let patterns = Patterns::all();
    let read = patches.iter().flat_map(|patch| patch.read(&patterns));
    Ok(read.collect())
}

impl Patch {
    fn read(&self, patterns: &Patterns) -> Vec<FilterPatch> {
        let value = &self.patch.value;
        let one = match (self.apply_to.as_str(), self.patch.operation.as_str()) {
            ("BOOTSTRAP" | "EXTENSION_CONFIG", _) => FilterPatch::Nothing,
            ("FILTER_CHAIN", "ADD") => match self.chain(patterns) {
                Ok(chain) => FilterPatch::Chain(chain),
                Err(why) => self.unknown(&why),
            },
            ("LISTENER", "MERGE") => self.only(&LISTENER_FIELDS, listener_filters(value)),
            // The inner listener that a `Socket` leads to, which reports it.
            ("LISTENER", "ADD") if value.pointer("/address/pipe").is_some() => FilterPatch::Nothing,
            ("CLUSTER", "ADD") => match value["name"].as_str().and_then(socket_of) {
                Some(id) => FilterPatch::Socket(id),
                None => self.unknown("a cluster that no Service stands behind"),
            },
            ("CLUSTER", "MERGE") if value.get("transport_socket").is_some() => FilterPatch::Http,
            ("CLUSTER", "MERGE") => self.only(&CLUSTER_FIELDS, Ok(())),
            ("HTTP_ROUTE" | "ROUTE_CONFIGURATION" | "VIRTUAL_HOST", _)
                if value.to_string().contains(RBAC) =>
            {
                self.unknown("it restricts clients, which is not applied here")
            }
            ("HTTP_ROUTE" | "ROUTE_CONFIGURATION" | "VIRTUAL_HOST", _) => FilterPatch::Http,
            ("HTTP_FILTER", _) if is_type(value, "lua.v3.Lua") => FilterPatch::Http,
            ("NETWORK_FILTER", _) if is_type(value, "HttpConnectionManager") => {
                return self.http(&value["typed_config"], patterns);
            }
            ("NETWORK_FILTER" | "HTTP_FILTER", _) if is_type(value, RBAC) => {
                self.restrict(patterns)
            }
            _ => self.unknown("no shape that is known"),
        };
        vec![one]
    }

    fn unknown(&self, why: &str) -> FilterPatch {
        let operation = &self.patch.operation;
        FilterPatch::Unknown(format!("{} {operation}: {why}", self.apply_to))
    }

    /// Nothing to do when the value has these fields only.
    fn only(&self, known: &[&str], also: Result<(), String>) -> FilterPatch {
        match also.and_then(|()| check_fields(&self.patch.value, known)) {
            Ok(()) => FilterPatch::Nothing,
            Err(why) => self.unknown(&why),
        }
    }

    /// Returns the port of the listener that is patched: as number, or in Istio's name of it.
    fn listener(&self) -> Option<u16> {
        let listener = &self.r#match["listener"];
        if let Some(port) = listener.get("port_number") {
            return u16::try_from(port.as_u64()?).ok();
        }
        listener["name"].as_str()?.rsplit_once('_')?.1.parse().ok()
    }

    fn restrict(&self, patterns: &Patterns) -> FilterPatch {
        let context = self.r#match["context"].as_str();
        if context.is_some_and(|context| context.starts_with("SIDECAR_")) {
            return FilterPatch::Nothing;
        }
        let operation = self.patch.operation.as_str();
        let config = &self.patch.value["typed_config"];
        let whole = operation.starts_with("INSERT_") || matches!(operation, "ADD" | "REPLACE");
        let whole = whole
            .then_some(())
            .ok_or_else(|| format!("the operation {operation}"));
        let restriction =
            Restriction::read(self.listener(), &self.r#match, config, whole, patterns);
        restriction.map_or(FilterPatch::Nothing, FilterPatch::Restrict)
    }

    fn chain(&self, patterns: &Patterns) -> Result<ChainPatch, String> {
        let value = &self.patch.value;
        check_fields(value, &["name", "filters", "filter_chain_match"])?;
        let matches = &value["filter_chain_match"];
        check_fields(matches, &["destination_port", "prefix_ranges"])?;
        let prefixes: Vec<IpPrefix> = list(matches, "prefix_ranges")
            .map(prefix)
            .collect::<Result<_, _>>()?;
        if prefixes.is_empty() {
            return Err("a chain without prefix_ranges".to_owned());
        }
        let port = matches.get("destination_port").map(number).transpose()?;
        let mut filters: Vec<&Value> = list(value, "filters").collect();
        let filter = filters.pop().ok_or("a chain without filters")?;
        if !is_type(filter, "tcp_proxy.v3.TcpProxy") {
            return Err("a chain whose last filter is not tcp_proxy".to_owned());
        }
        let access = filters
            .into_iter()
            .map(|filter| chain_access(filter, patterns));
        let access: Result<Vec<_>, _> = access.collect();
        let proxy = &filter["typed_config"];
        check_fields(proxy, &PROXY_FIELDS)?;
        Ok(ChainPatch {
            name: value["name"].as_str().map(str::to_owned),
            access: access.map(|all| all.into_iter().flatten().collect()),
            listener: self.listener(),
            cluster: cluster(proxy["cluster"].as_str().unwrap_or_default())?,
            prefixes,
            port,
            idle_timeout: duration(proxy, "idle_timeout")?,
            max_connection_age: duration(proxy, "max_downstream_connection_duration")?,
        })
    }

    /// Returns the CONNECT routes of an HTTP connection manager.
    fn http(&self, manager: &Value, patterns: &Patterns) -> Vec<FilterPatch> {
        if let Err(why) = check_fields(manager, &HTTP_FIELDS) {
            return vec![self.unknown(&why)];
        }
        let hosts = list(&manager["route_config"], "virtual_hosts");
        let routes = hosts.flat_map(|host| list(host, "routes"));
        let read = routes.map(|route| match self.connect(route, patterns) {
            Ok(Some(connect)) => FilterPatch::Connect(connect),
            Ok(None) => FilterPatch::Nothing,
            Err(why) => self.unknown(&why),
        });
        read.collect()
    }

    fn connect(&self, route: &Value, patterns: &Patterns) -> Result<Option<ConnectPatch>, String> {
        // What is no CONNECT to a known destination is answered by the gateway itself.
        if route.get("redirect").is_some() || route.get("direct_response").is_some() {
            return Ok(None);
        }
        let matches = &route["match"];
        if matches.get("connect_matcher").is_none() {
            return Err("a route of requests other than CONNECT".to_owned());
        }
        check_fields(matches, &["connect_matcher", "headers"])?;
        let mut headers = list(matches, "headers");
        let (Some(header), None) = (headers.next(), headers.next()) else {
            return Err("a CONNECT route by other than one header".to_owned());
        };
        let name = header["name"].as_str().unwrap_or_default();
        let value = header_value(header, patterns)?;
        let action = |field: &str| route["route"][field].as_str();
        let cluster = match (action("cluster"), action("cluster_header")) {
            (None, Some(by)) if by.eq_ignore_ascii_case(name) => None,
            (Some(own), None) if matches!(value, ConnectValue::Exact(_)) => Some(cluster(own)?),
            _ => return Err("a CONNECT route that no value of its header decides".to_owned()),
        };
        Ok(Some(ConnectPatch {
            listener: self.listener(),
            header: name.to_owned(),
            value,
            cluster,
        }))
    }
}

/// Reads a filter in front of a chain's proxy: one that says who may connect.
fn chain_access(filter: &Value, patterns: &Patterns) -> Result<Option<Access>, String> {
    if !is_type(filter, RBAC) {
        return Err("a chain of filters other than tcp_proxy and RBAC".to_owned());
    }
    Access::read(&filter["typed_config"], patterns)
        .map_err(|why| format!("access depends on {why}"))
}

fn cluster(name: &str) -> Result<ClusterName, String> {
    ClusterName::parse(name).ok_or_else(|| format!("the cluster {name:?} is not a Service's"))
}

/// Reads what a header must be; fields as `HeaderMatcher` has them, the older ones included.
fn header_value(header: &Value, patterns: &Patterns) -> Result<ConnectValue, String> {
    if header
        .get("invert_match")
        .is_some_and(|invert| *invert != false)
    {
        return Err("a header that must not match".to_owned());
    }
    if header.get("present_match").is_some() {
        return Ok(ConnectValue::Any);
    }
    let matcher = match header.get("string_match") {
        Some(matcher) => {
            Matcher::of(matcher, "", patterns).ok_or("a header match that is not known")??
        }
        None => Matcher::of(header, "_match", patterns).unwrap_or(Ok(Matcher::Any))?,
    };
    let pattern = |text: String| patterns.compile(&text).map(ConnectValue::Matches);
    match matcher {
        Matcher::Any => Ok(ConnectValue::Any),
        Matcher::Contains(part) => pattern(format!(".*{}.*", regex_lite::escape(&part))),
        // Gateways refuse longer ones, and what else is sent with them.
        Matcher::Exact(exact) if exact.len() > xds::MAX_NAME_BYTES => Err(format!(
            "a value of more than {} bytes",
            xds::MAX_NAME_BYTES
        )),
        Matcher::Exact(exact) => Ok(ConnectValue::Exact(exact)),
        Matcher::Pattern(own) => Ok(ConnectValue::Matches(own)),
        Matcher::Prefix(prefix) => pattern(format!("{}.*", regex_lite::escape(&prefix))),
        Matcher::Suffix(suffix) => pattern(format!(".*{}", regex_lite::escape(&suffix))),
    }
}

fn listener_filters(listener: &Value) -> Result<(), String> {
    for filter in list(listener, "listener_filters") {
        let own = filter["name"].as_str().unwrap_or_default();
        if !own.contains("proxy_protocol") && !own.contains("tls_inspector") {
            return Err(format!("the listener filter {own:?}"));
        }
    }
    Ok(())
}

fn is_type(filter: &Value, suffix: &str) -> bool {
    let url = filter["typed_config"]["@type"].as_str();
    url.is_some_and(|url| url.ends_with(suffix))
}

/// Checks that a message has no other than these fields.
pub(super) fn check_fields(message: &Value, known: &[&str]) -> Result<(), String> {
    let mut fields = message.as_object().into_iter().flatten();
    let other = fields.find(|(name, _)| !known.contains(&name.as_str()));
    other.map_or(Ok(()), |(name, _)| Err(format!("the field {name:?}")))
}

pub(super) fn prefix(range: &Value) -> Result<IpPrefix, String> {
    let address = range["address_prefix"].as_str().unwrap_or_default();
    let address = address
        .parse()
        .map_err(|_| format!("{address:?} is no address"))?;
    let len = range.get("prefix_len").map_or(Some(0), Value::as_u64);
    let len = len.and_then(|len| u8::try_from(len).ok());
    let len = len.ok_or("prefix_len is no length")?;
    match IpPrefix::new(address, len) {
        // Envoy masks an address itself.
        Err(IpPrefixError::HostBits { network }) => Ok(network),
        other => other.map_err(|error| error.to_string()),
    }
}

fn duration(message: &Value, name: &str) -> Result<Option<Duration>, String> {
    let Some(value) = message.get(name) else {
        return Ok(None);
    };
    let text = value.as_str().and_then(|text| text.strip_suffix('s'));
    let seconds = text.and_then(|text| text.parse::<f64>().ok());
    let own = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    own.map(Some)
        .ok_or_else(|| format!("{name} is no duration"))
}

fn number(value: &Value) -> Result<u16, String> {
    let port = value.as_u64().and_then(|port| u16::try_from(port).ok());
    let port = port.filter(|port| *port > 0);
    port.ok_or_else(|| "destination_port is not a port".to_owned())
}

pub(super) fn list<'v>(message: &'v Value, name: &str) -> impl Iterator<Item = &'v Value> {
    message[name].as_array().into_iter().flatten()
}

/// Reads a message with its fields in one of the two spellings that Envoy's JSON has, `prefix_len`
/// for `prefixLen`, and without those that are null.
fn normalized<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
    Value::deserialize(deserializer).map(normal)
}

fn normal(message: Value) -> Value {
    match message {
        Value::Array(all) => all.into_iter().map(normal).collect(),
        Value::Object(fields) => {
            let fields = fields.into_iter().filter(|(_, value)| !value.is_null());
            let fields = fields.map(|(name, mut value)| {
                // Policies have names of their own.
                if let ("policies", Some(all)) = (&*name, value.as_object_mut()) {
                    all.values_mut().for_each(|own| *own = normal(own.take()));
                    return (name, value);
                }
                (snake(&name), normal(value))
            });
            fields.collect()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => message,
    }
}

pub(super) fn snake(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    for letter in name.chars() {
        if letter.is_ascii_uppercase() {
            text.push('_');
        }
        text.push(letter.to_ascii_lowercase());
    }
    text
}

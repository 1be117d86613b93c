//! Decodes listeners.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use prost_types::Any;
use route::{IpPrefix, normal_server_name};

use crate::decode::cluster::source_is_stream;
use crate::decode::fault::{Fault, Within};
use crate::decode::http::ConnectRules;
use crate::decode::parts;
use crate::decode::terminate::{Downstream, Terminating};
use crate::proto::{
    CidrRange, FilterChain, FilterChainMatch, HttpConnectionManager, Listener, TcpProxy, kind,
};

/// A listener as it was sent.
#[derive(Debug)]
pub(super) struct ListenerConfig {
    /// Port of its address, if it has one.
    pub(super) port: Option<u16>,
    /// It has no socket: clusters lead to it by its name.
    pub(super) internal: bool,
    pub(super) chains: Vec<Chain>,
}

/// A filter chain: which connections, and where they go.
#[derive(Debug)]
pub(super) struct Chain {
    /// Where it stands in the listener, as in a path.
    pub(super) place: String,
    pub(super) matches: ChainMatch,
    /// Clients that may use it; empty = all.
    pub(super) allow_sources: Vec<IpPrefix>,
    pub(super) handler: Handler,
}

/// Which connections a chain is for; what is empty is any.
#[derive(Debug, Default)]
pub(super) struct ChainMatch {
    /// In the form in which they are compared.
    pub(super) server_names: Vec<String>,
    pub(super) prefixes: Vec<IpPrefix>,
    pub(super) port: Option<u16>,
    pub(super) transport: Transport,
}

/// What is on top of TCP.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum Transport {
    #[default]
    Any,
    /// Anything but TLS.
    Raw,
    Tls,
}

/// What happens to the connections of a chain.
#[derive(Debug)]
pub(super) enum Handler {
    /// CONNECT requests are led by their headers.
    Http(HttpHandler),
    /// They go to a cluster as they are.
    Tcp(Target),
    /// Their TLS ends here.
    Terminate(Box<Terminating>),
}

/// Where to, and for how long.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) cluster: String,
    pub(super) limits: Limits,
}

/// What a route says of its connections besides where they go.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Limits {
    pub(super) idle_timeout: Option<Duration>,
    pub(super) max_connection_age: Option<Duration>,
    /// Attempts to connect after the first.
    pub(super) retries: Option<u32>,
}

/// Where CONNECT requests go.
#[derive(Debug)]
pub(super) struct HttpHandler {
    pub(super) routes: HttpRoutes,
    /// For routes that do not say.
    pub(super) idle_timeout: Option<Duration>,
}

/// Where the routes of CONNECT requests are.
#[derive(Debug)]
pub(super) enum HttpRoutes {
    Inline(ConnectRules),
    /// In the route configuration of this name.
    Named(Arc<str>),
}

impl ListenerConfig {
    pub(super) fn read(message: &Listener) -> Result<Self, Fault> {
        let address = message.address.as_ref();
        let socket = address.and_then(|address| address.socket_address.as_ref());
        if address.is_some_and(|address| address.internal.is_some()) {
            let why = "the field is not understood";
            return Err(Fault::at("address.envoy_internal_address", why));
        }
        let mut port = None;
        if let Some(socket) = socket {
            if socket.protocol != 0 {
                let why = "only TCP is understood";
                return Err(Fault::at("address.socket_address.protocol", why));
            }
            let value = socket.port_value.map(parts::port).transpose();
            port = value.within("address.socket_address.port_value")?;
        }
        for (index, filter) in message.listener_filters.iter().enumerate() {
            if filter.typed_config.is_none() {
                let step = format_args!("listener_filters[{index}]");
                return Err(Fault::at(step, "it has no typed_config"));
            }
        }
        let mut chains = Vec::with_capacity(message.filter_chains.len() + 1);
        for (index, chain) in message.filter_chains.iter().enumerate() {
            chains.push(Chain::read(chain, format!("filter_chains[{index}]"))?);
        }
        if let Some(chain) = &message.default_filter_chain {
            let place = "default_filter_chain";
            if chain.filter_chain_match.is_some() {
                let why = "the default matches whatever else does not";
                return Err(Fault::at(format_args!("{place}.filter_chain_match"), why));
            }
            chains.push(Chain::read(chain, place.to_owned())?);
        }
        Ok(Self {
            port,
            internal: message.internal_listener.is_some(),
            chains,
        })
    }

    /// Returns the names of the route configurations that are referred to.
    pub(super) fn route_configurations(&self) -> impl Iterator<Item = &Arc<str>> {
        self.chains.iter().filter_map(|chain| match &chain.handler {
            Handler::Http(HttpHandler {
                routes: HttpRoutes::Named(name),
                ..
            }) => Some(name),
            Handler::Http(_) | Handler::Tcp(_) | Handler::Terminate(_) => None,
        })
    }

    /// Returns the chains that end TLS.
    pub(super) fn terminating(&self) -> impl Iterator<Item = &Terminating> {
        self.chains.iter().filter_map(|chain| match &chain.handler {
            Handler::Terminate(own) => Some(&**own),
            Handler::Http(_) | Handler::Tcp(_) => None,
        })
    }
}

impl Chain {
    /// Returns whether it is not for every connection that reaches its listener.
    pub(super) fn is_restricted(&self) -> bool {
        let matches = &self.matches;
        !self.allow_sources.is_empty()
            || !matches.server_names.is_empty()
            || !matches.prefixes.is_empty()
            || matches.port.is_some()
    }

    fn read(message: &FilterChain, place: String) -> Result<Self, Fault> {
        let matches = message.filter_chain_match.as_ref();
        let matches = matches.map(read_match).transpose();
        let matches = matches.within("filter_chain_match").within(&place)?;
        let (matches, allow_sources) = matches.unwrap_or_default();
        let socket = message.transport_socket.as_ref();
        let tls = socket.map(Downstream::read).transpose();
        let tls = tls.within("transport_socket").within(&place)?.flatten();
        Ok(Self {
            handler: read_filters(message, tls).within(&place)?,
            place,
            matches,
            allow_sources,
        })
    }
}

fn read_match(message: &FilterChainMatch) -> Result<(ChainMatch, Vec<IpPrefix>), Fault> {
    let mut server_names = Vec::with_capacity(message.server_names.len());
    let mut seen = HashSet::with_capacity(message.server_names.len());
    for (index, name) in message.server_names.iter().enumerate() {
        let name = normal_server_name(name).map_err(|error| {
            let step = format_args!("server_names[{index}]");
            Fault::at(step, error.to_string())
        })?;
        if !seen.insert(name.clone()) {
            let step = format_args!("server_names[{index}]");
            return Err(Fault::at(step, format!("{name} is there twice")));
        }
        server_names.push(name);
    }
    let port = message.destination_port.map(parts::port).transpose();
    let transport = match message.transport_protocol.as_str() {
        "" => Transport::Any,
        "raw_buffer" => Transport::Raw,
        "tls" => Transport::Tls,
        other => {
            let why = format!("{other:?} is not understood");
            return Err(Fault::at("transport_protocol", why));
        }
    };
    let mut prefixes = parts::prefixes("prefix_ranges", &message.prefix_ranges)?;
    prefixes.sort_unstable();
    prefixes.dedup();
    let matches = ChainMatch {
        server_names,
        prefixes,
        port: port.within("destination_port")?,
        transport,
    };
    Ok((matches, read_sources(message)?))
}

/// Reads who may use a chain. Which of the two lists it is does not matter: who the client is, is
/// the gateway's own setting.
fn read_sources(message: &FilterChainMatch) -> Result<Vec<IpPrefix>, Fault> {
    let (field, ranges): (_, &[CidrRange]) = if message.direct_source_prefix_ranges.is_empty() {
        ("source_prefix_ranges", &message.source_prefix_ranges)
    } else if message.source_prefix_ranges.is_empty() {
        let ranges = &message.direct_source_prefix_ranges;
        ("direct_source_prefix_ranges", ranges)
    } else {
        let why = "together with source_prefix_ranges it is not understood";
        return Err(Fault::at("direct_source_prefix_ranges", why));
    };
    parts::prefixes(field, ranges)
}

/// Reads what the filters of a chain come to: exactly one of them leads on.
fn read_filters(message: &FilterChain, mut tls: Option<Downstream>) -> Result<Handler, Fault> {
    let mut handler = None;
    for (index, filter) in message.filters.iter().enumerate() {
        let any = filter.typed_config.as_ref();
        let read = any
            .ok_or_else(|| Fault::new("it has no typed_config"))
            .and_then(|any| read_filter(any, &mut tls));
        let read = read.within(format_args!("filters[{index}]"))?;
        if read.is_some() && handler.is_some() {
            let step = format_args!("filters[{index}]");
            return Err(Fault::at(step, "an earlier filter leads on already"));
        }
        handler = handler.or(read);
    }
    match (handler, tls) {
        (Some(_), Some(_)) => {
            let why = "behind TLS only a connection manager is understood";
            Err(Fault::at("transport_socket", why))
        }
        (handler, _) => handler.ok_or_else(|| Fault::at("filters", "none of them leads on")),
    }
}

/// Reads a filter; `None` when it only watches. A connection manager takes the chain's TLS, if there is any.
fn read_filter(any: &Any, tls: &mut Option<Downstream>) -> Result<Option<Handler>, Fault> {
    if let Some(message) = parts::unpack::<TcpProxy>(any, kind::TCP_PROXY)? {
        let target = read_tcp_proxy(&message).within("typed_config(TcpProxy)")?;
        return Ok(Some(Handler::Tcp(target)));
    }
    let kind = kind::HTTP_CONNECTION_MANAGER;
    let Some(message) = parts::unpack::<HttpConnectionManager>(any, kind)? else {
        return Ok(None);
    };
    let handler = match tls.take() {
        Some(tls) => Terminating::read(&message, tls).map(|own| Handler::Terminate(Box::new(own))),
        None => read_manager(&message).map(Handler::Http),
    };
    handler
        .within("typed_config(HttpConnectionManager)")
        .map(Some)
}

fn read_tcp_proxy(message: &TcpProxy) -> Result<Target, Fault> {
    let age = message.max_downstream_connection_duration;
    let retries = match message.max_connect_attempts {
        Some(0) => return Err(Fault::at("max_connect_attempts", "it is 0")),
        attempts => attempts.map(|attempts| attempts - 1),
    };
    Ok(Target {
        cluster: parts::name(&message.cluster).within("cluster")?,
        limits: Limits {
            idle_timeout: parts::some_duration("idle_timeout", message.idle_timeout)?,
            max_connection_age: parts::some_duration("max_downstream_connection_duration", age)?,
            retries,
        },
    })
}

fn read_manager(message: &HttpConnectionManager) -> Result<HttpHandler, Fault> {
    if !matches!(message.codec_type, 0 | 1) {
        return Err(Fault::at(
            "codec_type",
            "only AUTO and HTTP1 are understood",
        ));
    }
    for (index, filter) in message.http_filters.iter().enumerate() {
        crate::decode::http::check_filter(filter).within(format_args!("http_filters[{index}]"))?;
    }
    let routes = match (&message.rds, &message.route_config) {
        (Some(rds), _) => {
            let source = rds.config_source.as_ref();
            source_is_stream(source).within("rds.config_source")?;
            let name = parts::name(&rds.route_config_name);
            HttpRoutes::Named(name.within("rds.route_config_name")?.into())
        }
        (None, Some(config)) => {
            HttpRoutes::Inline(ConnectRules::read(config).within("route_config")?)
        }
        (None, None) => return Err(Fault::new("it has no routes")),
    };
    Ok(HttpHandler {
        routes,
        idle_timeout: parts::some_duration("stream_idle_timeout", message.stream_idle_timeout)?,
    })
}

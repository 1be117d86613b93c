//! Listeners: their keys, and what two of them may not share.

use std::collections::BTreeSet;
use std::net::Ipv6Addr;

use route::TcpOptions;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use settings::{ConfigErrors, ListenAddress, TcpOverrides, TcpSettings};

use super::validate_tcp;

/// One listening socket.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[schemars(rename = "ListenerFile")]
pub(crate) struct ListenerConfig {
    /// Name in logs and metrics.
    pub(crate) name: String,
    /// Address and port; port 0 picks one, which the log names.
    pub(crate) address: ListenAddress,
    /// What connections of this listener begin with.
    pub(crate) protocol: Protocol,
    /// Whether a load balancer in front sends a PROXY header.
    #[serde(default)]
    pub(crate) proxy_protocol: ProxyProtocol,
    /// Overrides of the TCP options.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tcp: Option<TcpOverrides>,
    /// Overrides of the TCP options of sockets that are dialed for this listener's connections;
    /// they go before those of the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) upstream_tcp: Option<TcpOverrides>,
}

telemetry::labels! {
    /// What the connections of a listener begin with.
    #[derive(Deserialize, JsonSchema, Serialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Protocol {
        /// An HTTP CONNECT request, routed by a header.
        Connect = "connect",
        /// A node proxy's PROXY header, routed by its destination, or an HTTP CONNECT request.
        ProxyOrConnect = "proxy-or-connect",
        /// A TLS ClientHello, routed by its server name.
        Tls = "tls",
        /// WireGuard's datagrams, on UDP.
        #[serde(rename = "wireguard")]
        WireGuard = "wireguard",
    }
}

/// Whether a load balancer's PROXY header comes first.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProxyProtocol {
    /// Never.
    #[default]
    Off,
    /// From trusted peers it may.
    Optional,
    /// Always; other peers are refused.
    Required,
}

impl ListenerConfig {
    /// Tells whether it takes datagrams and not connections.
    pub(crate) fn takes_datagrams(&self) -> bool {
        self.protocol == Protocol::WireGuard
    }

    /// Returns the options of its sockets.
    pub(crate) fn tcp_options(&self, base: &TcpSettings) -> TcpOptions {
        match &self.tcp {
            Some(overrides) => (&overrides.over(base)).into(),
            None => base.into(),
        }
    }

    fn validate(&self, key: &str, tcp: &TcpSettings, errors: &mut ConfigErrors) {
        let meaningless = "means nothing to a listener that takes datagrams";
        if self.takes_datagrams() && self.proxy_protocol != ProxyProtocol::Off {
            errors.add(format!("{key}.proxyProtocol"), meaningless);
        }
        for (word, overrides) in [("tcp", &self.tcp), ("upstreamTcp", &self.upstream_tcp)] {
            let Some(overrides) = overrides else { continue };
            let key = format!("{key}.{word}");
            if self.takes_datagrams() {
                errors.add(key, meaningless);
            } else {
                validate_tcp(&overrides.over(tcp), &key, errors);
            }
        }
    }
}

/// Adds to `errors` what is wrong with the listeners, each by itself and beside the others.
pub(super) fn validate(
    listeners: &[ListenerConfig],
    trusted_proxies: &[String],
    tcp: &TcpSettings,
    errors: &mut ConfigErrors,
) {
    let (mut names, mut addresses) = (BTreeSet::new(), BTreeSet::new());
    for (index, listener) in listeners.iter().enumerate() {
        let key = format!("listeners[{index}]");
        let name = &listener.name;
        if name.is_empty() {
            errors.add(format!("{key}.name"), "a name is needed");
        } else if !names.insert(name) {
            let why = format!("there are two listeners {name:?}");
            errors.add(format!("{key}.name"), why);
        }
        let address = listener.address.get();
        // `[::]` takes IPv4 as well.
        let ip = match address.ip().to_canonical() {
            ip if ip.is_unspecified() => Ipv6Addr::UNSPECIFIED.into(),
            ip => ip,
        };
        // TCP and UDP have ports of their own.
        let place = (ip, address.port(), listener.takes_datagrams());
        if address.port() != 0 && !addresses.insert(place) {
            let why = format!("two listeners listen on {address}");
            errors.add(format!("{key}.address"), why);
        }
        let balanced = listener.proxy_protocol != ProxyProtocol::Off && !listener.takes_datagrams();
        if balanced && trusted_proxies.is_empty() {
            let why = format!("must be given, because listener {name:?} takes a PROXY header");
            errors.add("trustedProxies", why);
        }
        listener.validate(&key, tcp, errors);
    }
}

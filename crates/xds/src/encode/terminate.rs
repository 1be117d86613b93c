//! Routes whose TLS ends in the gateway.
//!
//! ```text
//!   server names ──▶ FilterChain with TLS ─┬─ client showed a certificate ─▶ Cluster with TLS and identity
//!                                          └─ others ──────────────────────▶ Cluster with TLS
//!   CONNECT value ─▶ Cluster ─▶ internal Listener, with a chain as above
//! ```
//!
//! Clusters with TLS have the endpoints of the route's own. Not for Envoy, which cannot report an API server who
//! a client is without changing what the certificate says: there such routes are passed through.

use std::sync::Arc;

use route::RouteSpec;
use tls::MinVersion;

use crate::encode::{connect, duration, resource};
use crate::proto::{
    Address, Cluster, ClusterLoadAssignment, CombinedValidationContext, CommonHttpProtocolOptions,
    CommonTlsContext, ConfigSource, DownstreamTlsContext, EdsClusterConfig, Empty, Endpoint,
    Filter4, FilterChain, HeaderValue, HeaderValueOption, Http2ProtocolOptions,
    HttpConnectionManager, InternalAddress, LbEndpoint, Listener, LocalityLbEndpoints,
    NameValidation, Route, RouteAction, RouteConfiguration, RouteMatch, SAN_DNS, SdsSecretConfig,
    StringMatcher, StringPattern, SubjectAltNameMatcher, TlsContextMatch, TlsParameters,
    TransportSocket, UpgradeType, UpstreamTlsContext, VirtualHost, any, discovery_type, kind,
    tls_protocol,
};
use crate::resource::{Audience, Resource, ResourceType};
use crate::terminate::Terminate;

const TLS: &str = "envoy.transport_sockets.tls";

/// Headers that tell an API server who a client is; only the gateway sets them.
const IDENTITY: [&str; 3] = ["x-remote-user", "x-remote-group", "x-remote-uid"];

/// Returns how the TLS of a route ends, if it does.
pub(super) fn of(spec: &RouteSpec) -> Option<Arc<Terminate>> {
    spec.handler.as_ref()?.get()
}

/// Puts TLS and HTTP in a chain.
pub(super) fn chain(own: &Terminate, spec: &RouteSpec) -> FilterChain {
    let protocol = match own.min_version {
        MinVersion::Tls12 => tls_protocol::TLS_1_2,
        MinVersion::Tls13 => tls_protocol::TLS_1_3,
    };
    let context = DownstreamTlsContext {
        common: Some(CommonTlsContext {
            tls_params: Some(TlsParameters {
                tls_minimum_protocol_version: protocol,
            }),
            validation_context_sds_secret_config: own.client_authorities.as_deref().map(secret),
            ..common(Some(&own.certificate))
        }),
        require_client_certificate: Some(false),
    };
    FilterChain {
        filters: vec![manager(own, spec)],
        transport_socket: Some(socket(any(kind::DOWNSTREAM_TLS, &context))),
        ..FilterChain::default()
    }
}

/// Returns the clusters with TLS of a route.
pub(super) fn clusters(own: &Terminate, spec: &RouteSpec) -> impl Iterator<Item = Resource> {
    let [identified, rest] = names(own, spec);
    let identified = identified.map(|name| cluster(name, own, own.identity.as_deref(), spec));
    let rest = rest.map(|name| cluster(name, own, None, spec));
    identified.into_iter().chain(rest)
}

/// Returns what a value of CONNECT leads to: a cluster of its name, and a listener.
pub(super) fn internal(value: &str, own: &Terminate, spec: &RouteSpec) -> [Resource; 2] {
    let endpoint = LbEndpoint {
        endpoint: Some(Endpoint {
            address: Some(Address {
                socket_address: None,
                internal: Some(InternalAddress {
                    server_listener_name: value.to_owned(),
                }),
            }),
        }),
        ..LbEndpoint::default()
    };
    let cluster = Cluster {
        name: value.to_owned(),
        discovery_type: discovery_type::STATIC,
        load_assignment: Some(ClusterLoadAssignment {
            cluster_name: value.to_owned(),
            endpoints: vec![LocalityLbEndpoints {
                lb_endpoints: vec![endpoint],
                ..LocalityLbEndpoints::default()
            }],
            policy: None,
        }),
        ..Cluster::default()
    };
    let listener = Listener {
        name: value.to_owned(),
        filter_chains: vec![chain(own, spec)],
        internal_listener: Some(Empty {}),
        ..Listener::default()
    };
    [
        resource(ResourceType::Cluster, value, &cluster, Audience::Parts),
        resource(ResourceType::Listener, value, &listener, Audience::Parts),
    ]
}

/// Returns the names of the clusters for clients with a certificate, and for the others: equal ones are the same.
fn names(own: &Terminate, spec: &RouteSpec) -> [Option<String>; 2] {
    let (server, authorities) = (own.server_name.to_str(), &own.authorities);
    let rest = format!("{}|{server}|{authorities}", spec.cluster);
    let identity = own.identity.as_ref();
    let identified = identity.map(|identity| format!("{rest}|{identity}"));
    [identified, Some(rest)]
}

fn cluster(name: String, own: &Terminate, identity: Option<&str>, spec: &RouteSpec) -> Resource {
    let server = own.server_name.to_str();
    let exact = StringMatcher {
        pattern: Some(StringPattern::Exact(server.to_string())),
        ignore_case: false,
    };
    let context = UpstreamTlsContext {
        common: Some(CommonTlsContext {
            combined_validation_context: Some(CombinedValidationContext {
                default_validation_context: Some(NameValidation {
                    match_typed_subject_alt_names: vec![SubjectAltNameMatcher {
                        san_type: SAN_DNS,
                        matcher: Some(exact),
                    }],
                }),
                validation_context_sds_secret_config: Some(secret(&own.authorities)),
            }),
            ..common(identity)
        }),
        sni: server.into_owned(),
    };
    let message = Cluster {
        discovery_type: discovery_type::EDS,
        eds_cluster_config: Some(EdsClusterConfig {
            eds_config: Some(ConfigSource::ads()),
            service_name: spec.cluster.clone(),
        }),
        transport_socket: Some(socket(any(kind::UPSTREAM_TLS, &context))),
        name,
        ..Cluster::default()
    };
    resource(
        ResourceType::Cluster,
        &message.name,
        &message,
        Audience::Parts,
    )
}

fn common(certificate: Option<&str>) -> CommonTlsContext {
    CommonTlsContext {
        alpn_protocols: vec!["h2".to_owned(), "http/1.1".to_owned()],
        tls_certificate_sds_secret_configs: certificate.map(secret).into_iter().collect(),
        ..CommonTlsContext::default()
    }
}

fn manager(own: &Terminate, spec: &RouteSpec) -> Filter4 {
    let lead = |cluster: String, presented: bool| Route {
        matches: Some(RouteMatch {
            prefix: Some("/".to_owned()),
            tls_context: presented.then_some(TlsContextMatch {
                presented: Some(true),
            }),
            ..RouteMatch::default()
        }),
        route: Some(RouteAction {
            cluster: Some(cluster),
            timeout: Some(duration(own.stream_timeout)),
            ..RouteAction::default()
        }),
        ..Route::default()
    };
    let [identified, rest] = names(own, spec);
    let identified = identified.map(|name| lead(name, true));
    let routes = identified
        .into_iter()
        .chain(rest.map(|name| lead(name, false)));
    let hsts = (!own.hsts.is_zero()).then(|| HeaderValueOption {
        header: Some(HeaderValue {
            key: "strict-transport-security".to_owned(),
            value: format!("max-age={}", own.hsts.as_secs()),
        }),
        append_action: 2,
    });
    let host = VirtualHost {
        name: spec.cluster.clone(),
        domains: vec!["*".to_owned()],
        routes: routes.collect(),
        response_headers_to_add: hsts.into_iter().collect(),
        request_headers_to_remove: IDENTITY.map(str::to_owned).into(),
        ..VirtualHost::default()
    };
    let upgrade = |kind: &str| UpgradeType {
        upgrade_type: kind.to_owned(),
    };
    let router = Filter4 {
        name: "envoy.filters.http.router".to_owned(),
        typed_config: Some(any(kind::ROUTER, &Empty {})),
    };
    connect::filter(&HttpConnectionManager {
        stat_prefix: spec.cluster.clone(),
        route_config: Some(RouteConfiguration {
            name: spec.cluster.clone(),
            virtual_hosts: vec![host],
        }),
        http_filters: vec![router],
        http2_protocol_options: Some(Http2ProtocolOptions {
            max_concurrent_streams: Some(own.max_streams),
        }),
        common_http_protocol_options: Some(CommonHttpProtocolOptions {
            idle_timeout: spec.idle_timeout.map(duration),
            max_connection_duration: spec.max_connection_age.map(duration),
        }),
        upgrade_configs: ["websocket", "spdy/3.1"].map(upgrade).into(),
        ..HttpConnectionManager::default()
    })
}

fn secret(name: impl AsRef<str>) -> SdsSecretConfig {
    SdsSecretConfig {
        name: name.as_ref().to_owned(),
        sds_config: Some(ConfigSource::ads()),
    }
}

fn socket(typed_config: prost_types::Any) -> TransportSocket {
    TransportSocket {
        name: TLS.to_owned(),
        typed_config: Some(typed_config),
    }
}

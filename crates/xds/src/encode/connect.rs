//! Routes of CONNECT requests, and the connection manager around them.

use std::collections::BTreeMap;
use std::time::Duration;

use route::{IpPrefix, RouteSpec};

use crate::encode::matches::cidr_range;
use crate::encode::{GatewayParams, duration};
use crate::proto::{
    ConfigSource, ConnectConfig, ConnectionProperties, DirectResponseAction, Empty, Filter3,
    Filter4, HeaderMatcher, HeaderPattern, Http1ProtocolOptions, HttpConnectionManager,
    MaxStreamDuration, PrincipalIdentifier, Rbac, RbacFilter, RbacPerRoute, RbacPermission,
    RbacPolicy, RbacPrincipal, Rds, RedirectAction, RetryPolicy, Route, RouteAction,
    RouteConfiguration, RouteHashPolicy, RouteMatch, StringMatcher, StringPattern, UpgradeConfig,
    UpgradeType, VirtualHost, any, kind,
};
use crate::resource::Audience;

/// Name of the filter that enforces who may use a route.
const RBAC: &str = "envoy.filters.http.rbac";

const CONNECT: &str = "CONNECT";

/// Times that Envoy looks for an endpoint that was not tried yet.
const MAX_SELECTIONS: i64 = 3;

/// Encodes the routes from one value of the header to a cluster, in the form for `audience`: Envoy needs one per
/// header, ours knows its headers itself.
pub(super) fn routes(
    value: &str,
    (spec, cluster): (&RouteSpec, &str),
    params: &GatewayParams,
    audience: Audience,
) -> Vec<Route> {
    let headers = match audience {
        Audience::Whole => params.connect_headers.as_slice(),
        Audience::All | Audience::Parts => &params.connect_headers[..1],
    };
    let exact = StringMatcher {
        pattern: Some(StringPattern::Exact(value.to_owned())),
        ignore_case: false,
    };
    let route = |header: &&str| Route {
        matches: Some(connect(header, HeaderPattern::String(exact.clone()))),
        route: Some(action(spec, cluster, params, audience)),
        typed_per_filter_config: access(&spec.allow_sources),
        ..Route::default()
    };
    headers.iter().map(route).collect()
}

fn connect(header: &str, pattern: HeaderPattern) -> RouteMatch {
    RouteMatch {
        headers: vec![HeaderMatcher {
            name: header.to_owned(),
            pattern: Some(pattern),
            invert_match: false,
        }],
        connect_matcher: Some(Empty {}),
        ..RouteMatch::default()
    }
}

fn action(
    spec: &RouteSpec,
    cluster: &str,
    params: &GatewayParams,
    audience: Audience,
) -> RouteAction {
    let tunnel = UpgradeConfig {
        upgrade_type: CONNECT.to_owned(),
        enabled: None,
        connect_config: Some(ConnectConfig { allow_post: false }),
    };
    let mut action = RouteAction {
        cluster: Some(cluster.to_owned()),
        retry_policy: Some(RetryPolicy {
            retry_on: "connect-failure".to_owned(),
            num_retries: Some(params.connect_retries),
            ..RetryPolicy::default()
        }),
        idle_timeout: spec.idle_timeout.map(duration),
        max_stream_duration: spec.max_connection_age.map(|age| MaxStreamDuration {
            max_stream_duration: Some(duration(age)),
        }),
        upgrade_configs: vec![tunnel],
        ..RouteAction::default()
    };
    if audience == Audience::Whole {
        action.timeout = Some(duration(Duration::ZERO));
        let by_source = ConnectionProperties { source_ip: true };
        action.hash_policy = vec![RouteHashPolicy {
            connection_properties: Some(by_source),
        }];
        if let Some(policy) = &mut action.retry_policy {
            policy.retry_host_predicate = vec![Filter3 {
                name: "envoy.retry_host_predicates.previous_hosts".to_owned(),
                typed_config: Some(any(kind::PREVIOUS_HOSTS, &Empty {})),
            }];
            policy.host_selection_retry_max_attempts = MAX_SELECTIONS;
        }
    }
    action
}

/// Encodes who may use a route. What counts is the address of the TCP peer: what a PROXY header or
/// a request says of the client is the client's to choose.
fn access(sources: &[IpPrefix]) -> BTreeMap<String, prost_types::Any> {
    if sources.is_empty() {
        return BTreeMap::new();
    }
    let principals = sources.iter().map(|source| RbacPrincipal {
        identifier: Some(PrincipalIdentifier::DirectRemoteIp(cidr_range(source))),
    });
    let policy = RbacPolicy {
        permissions: vec![RbacPermission { any: Some(true) }],
        principals: principals.collect(),
    };
    let rbac = RbacPerRoute {
        rbac: Some(RbacFilter {
            rules: Some(Rbac {
                action: 0,
                policies: [("allow-sources".to_owned(), policy)].into(),
            }),
        }),
    };
    [(RBAC.to_owned(), any(kind::RBAC_PER_ROUTE, &rbac))].into()
}

/// Returns what requests are answered that lead nowhere: 404 to a CONNECT to an unknown
/// destination, a redirect to HTTPS on the same host to everything else.
pub(super) fn otherwise(params: &GatewayParams) -> Vec<Route> {
    let redirect = RedirectAction {
        response_code: 4,
        https_redirect: true,
        port_redirect: 443,
    };
    let redirected = |matches: RouteMatch| Route {
        matches: Some(matches),
        redirect: Some(redirect),
        ..Route::default()
    };
    let headers = params.connect_headers.iter();
    let mut routes: Vec<Route> = headers
        .map(|header| Route {
            matches: Some(connect(header, HeaderPattern::Present(true))),
            direct_response: Some(DirectResponseAction { status: 404 }),
            ..Route::default()
        })
        .collect();
    routes.push(redirected(RouteMatch {
        connect_matcher: Some(Empty {}),
        ..RouteMatch::default()
    }));
    routes.push(redirected(RouteMatch {
        prefix: Some("/".to_owned()),
        ..RouteMatch::default()
    }));
    routes
}

/// Wraps routes in a configuration for all hosts.
pub(super) fn configuration(name: &str, routes: Vec<Route>) -> RouteConfiguration {
    RouteConfiguration {
        name: name.to_owned(),
        virtual_hosts: vec![VirtualHost {
            name: name.to_owned(),
            domains: vec!["*".to_owned()],
            routes,
            ..VirtualHost::default()
        }],
    }
}

/// Returns the filter that leads by the routes that it has itself.
pub(super) fn inline(configuration: RouteConfiguration) -> Filter4 {
    filter(&HttpConnectionManager {
        route_config: Some(configuration),
        ..HttpConnectionManager::default()
    })
}

/// Returns the filter that leads by the route configuration `name`, as Envoy needs it. The routes
/// are apart, so that a change of one does not end the requests of the others.
pub(super) fn by_name(name: &str, params: &GatewayParams) -> Filter4 {
    let http_filter = |name: &str, config| Filter4 {
        name: name.to_owned(),
        typed_config: Some(config),
    };
    filter(&HttpConnectionManager {
        codec_type: 1,
        stat_prefix: name.to_owned(),
        rds: Some(Rds {
            config_source: Some(ConfigSource::ads()),
            route_config_name: name.to_owned(),
        }),
        route_config: None,
        http_filters: vec![
            http_filter(RBAC, any(kind::RBAC, &RbacFilter::default())),
            http_filter("envoy.filters.http.router", any(kind::ROUTER, &Empty {})),
        ],
        http_protocol_options: Some(Http1ProtocolOptions {
            accept_http_10: true,
        }),
        use_remote_address: Some(true),
        // Without it Envoy answers 403 to a CONNECT that is not led on.
        upgrade_configs: vec![UpgradeType {
            upgrade_type: CONNECT.to_owned(),
        }],
        generate_request_id: Some(false),
        stream_idle_timeout: Some(duration(Duration::ZERO)),
        request_headers_timeout: Some(duration(params.preamble_timeout)),
        ..HttpConnectionManager::default()
    })
}

pub(super) fn filter(manager: &HttpConnectionManager) -> Filter4 {
    Filter4 {
        name: "envoy.filters.network.http_connection_manager".to_owned(),
        typed_config: Some(any(kind::HTTP_CONNECTION_MANAGER, manager)),
    }
}

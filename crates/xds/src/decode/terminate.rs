//! Decodes what ends TLS: a chain with a context of TLS around a connection manager, and the clusters that its
//! requests go to. Secrets are names here.

use std::sync::Arc;
use std::time::Duration;

use tls::MinVersion;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::decode::cluster::source_is_stream;
use crate::decode::fault::{Fault, Within};
use crate::decode::http::check_filter;
use crate::decode::listener::Limits;
use crate::decode::parts;
use crate::proto::{
    CommonTlsContext, DownstreamTlsContext, HeaderValueOption, HttpConnectionManager, Route,
    SAN_DNS, SdsSecretConfig, StringPattern, SubjectAltNameMatcher, TransportSocket,
    UpstreamTlsContext, kind, tls_protocol,
};
use crate::terminate::Terminate;

/// What is offered both ways.
const ALPN: [&str; 2] = ["h2", "http/1.1"];

/// Requests of one HTTP/2 connection at once, when it is not said.
const DEFAULT_STREAMS: u32 = 100;

const HSTS: &str = "strict-transport-security";

/// TLS with clients.
#[derive(Debug)]
pub(super) struct Downstream {
    pub(super) certificate: Arc<str>,
    pub(super) client_authorities: Option<Arc<str>>,
    min_version: MinVersion,
}

/// TLS with the endpoints of a cluster.
#[derive(Debug)]
pub(super) struct Upstream {
    server_name: ServerName<'static>,
    pub(super) authorities: Arc<str>,
    pub(super) identity: Option<Arc<str>>,
}

/// A chain that ends TLS, and where its requests go.
#[derive(Debug)]
pub(super) struct Terminating {
    pub(super) downstream: Downstream,
    /// Cluster of requests whose client showed a certificate.
    pub(super) identified: Option<String>,
    /// Cluster of the others.
    pub(super) cluster: String,
    pub(super) limits: Limits,
    hsts: Duration,
    max_streams: u32,
    stream_timeout: Duration,
}

impl Downstream {
    /// Reads the TLS of a chain; `None` when it has none.
    pub(super) fn read(socket: &TransportSocket) -> Result<Option<Self>, Fault> {
        let any = socket.typed_config.as_ref();
        let any = any.ok_or_else(|| Fault::new("it has no typed_config"))?;
        if parts::unpack::<UpstreamTlsContext>(any, kind::UPSTREAM_TLS)?.is_some() {
            return Err(Fault::new("a chain has a DownstreamTlsContext"));
        }
        let message = parts::unpack::<DownstreamTlsContext>(any, kind::DOWNSTREAM_TLS)?;
        message.map(|message| Self::of(&message)).transpose()
    }

    fn of(message: &DownstreamTlsContext) -> Result<Self, Fault> {
        if message.require_client_certificate == Some(true) {
            let why = "clients without a certificate would be refused";
            return Err(Fault::at("require_client_certificate", why));
        }
        let common = message.common.as_ref();
        let common = common.ok_or_else(|| Fault::at("common_tls_context", "it is missing"))?;
        let read = || {
            let certificate = certificate(common)?;
            let certificate = certificate
                .ok_or_else(|| Fault::at("tls_certificate_sds_secret_configs", "there is none"))?;
            let (client_authorities, names) = validation(common)?;
            if !names.is_empty() {
                let why = "names of clients are not restricted";
                return Err(Fault::at("combined_validation_context", why));
            }
            let lowest = common
                .tls_params
                .map(|own| own.tls_minimum_protocol_version);
            let min_version = match lowest.unwrap_or(tls_protocol::AUTO) {
                tls_protocol::AUTO | tls_protocol::TLS_1_2 => MinVersion::Tls12,
                tls_protocol::TLS_1_3 => MinVersion::Tls13,
                other => {
                    let why = format!("the value {other} is not understood");
                    return Err(Fault::at("tls_params.tls_minimum_protocol_version", why));
                }
            };
            Ok(Self {
                certificate,
                client_authorities,
                min_version,
            })
        };
        read().within("common_tls_context")
    }
}

impl Upstream {
    /// Reads the TLS of a cluster; `None` when it has none.
    pub(super) fn read(socket: &TransportSocket) -> Result<Option<Self>, Fault> {
        let any = socket.typed_config.as_ref();
        let any = any.ok_or_else(|| Fault::new("it has no typed_config"))?;
        if parts::unpack::<DownstreamTlsContext>(any, kind::DOWNSTREAM_TLS)?.is_some() {
            return Err(Fault::new("a cluster has an UpstreamTlsContext"));
        }
        let message = parts::unpack::<UpstreamTlsContext>(any, kind::UPSTREAM_TLS)?;
        message.map(|message| Self::of(&message)).transpose()
    }

    fn of(message: &UpstreamTlsContext) -> Result<Self, Fault> {
        let server_name = ServerName::try_from(message.sni.clone());
        let server_name = server_name.map_err(|error| Fault::at("sni", error.to_string()))?;
        let common = message.common.as_ref();
        let common = common.ok_or_else(|| Fault::at("common_tls_context", "it is missing"))?;
        let read = || {
            let (authorities, names) = validation(common)?;
            let authorities = authorities.ok_or_else(|| {
                Fault::at(
                    "combined_validation_context",
                    "any server would be believed",
                )
            })?;
            // Without a name Envoy believes any certificate of these authorities; here it is always verified.
            let other = names.iter().find(|one| !is_dns_name(one, &message.sni));
            if other.is_some() || names.len() > 1 {
                let why = "only the name in sni, as an exact DNS name, is understood";
                return Err(Fault::at("combined_validation_context", why));
            }
            Ok((authorities, certificate(common)?))
        };
        let (authorities, identity) = read().within("common_tls_context")?;
        Ok(Self {
            server_name,
            authorities,
            identity,
        })
    }
}

impl Terminating {
    /// Reads a connection manager behind TLS.
    pub(super) fn read(
        message: &HttpConnectionManager,
        downstream: Downstream,
    ) -> Result<Self, Fault> {
        if message.codec_type != 0 {
            return Err(Fault::at("codec_type", "only AUTO is understood"));
        }
        for (index, filter) in message.http_filters.iter().enumerate() {
            check_filter(filter).within(format_args!("http_filters[{index}]"))?;
        }
        let config = message.route_config.as_ref();
        let config = config.ok_or_else(|| Fault::at("route_config", "it is missing"))?;
        let [host] = config.virtual_hosts.as_slice() else {
            let why = "one virtual host is understood";
            return Err(Fault::at("route_config.virtual_hosts", why));
        };
        let place = "route_config.virtual_hosts[0]";
        if host.domains != ["*"] || host.require_tls != 0 {
            let why = "only the domain \"*\" is understood, without require_tls";
            return Err(Fault::at(place, why));
        }
        let hsts = hsts(&host.response_headers_to_add).within(place)?;
        let (identified, rest) = match host.routes.as_slice() {
            [rest] => (None, rest),
            [first, rest] => (Some(first), rest),
            _ => return Err(Fault::at(place, "one or two routes are understood")),
        };
        let read = |route: &Route, presented| lead(route, presented).within(place);
        let identified = identified.map(|route| read(route, true)).transpose()?;
        let (cluster, stream_timeout) = read(rest, false)?;
        if identified
            .as_ref()
            .is_some_and(|(_, own)| *own != stream_timeout)
        {
            return Err(Fault::at(place, "its routes have different timeouts"));
        }
        let streams = message
            .http2_protocol_options
            .and_then(|own| own.max_concurrent_streams);
        let max_streams = streams.unwrap_or(DEFAULT_STREAMS);
        if max_streams == 0 {
            return Err(Fault::at(
                "http2_protocol_options.max_concurrent_streams",
                "it is 0",
            ));
        }
        let common = message.common_http_protocol_options.unwrap_or_default();
        let field = "common_http_protocol_options";
        Ok(Self {
            downstream,
            identified: identified.map(|(cluster, _)| cluster),
            cluster,
            limits: Limits {
                idle_timeout: parts::some_duration(field, common.idle_timeout)?,
                max_connection_age: parts::some_duration(field, common.max_connection_duration)?,
                retries: None,
            },
            hsts,
            max_streams,
            stream_timeout,
        })
    }

    /// Combines it with the TLS of its clusters, or says why they do not fit.
    pub(super) fn with(
        &self,
        rest: &Upstream,
        identified: Option<&Upstream>,
    ) -> Result<Terminate, &'static str> {
        let own = &self.downstream;
        let identity = identified.and_then(|own| own.identity.clone());
        if own.client_authorities.is_some() && identity.is_none() {
            return Err("servers would not be told who a client with a certificate is");
        }
        if rest.identity.is_some() {
            return Err("requests of clients without a certificate would have an identity");
        }
        let same = |one: &&Upstream| {
            one.server_name == rest.server_name && one.authorities == rest.authorities
        };
        if !identified.iter().all(same) {
            return Err("its clusters verify servers differently");
        }
        Ok(Terminate {
            certificate: Arc::clone(&own.certificate),
            client_authorities: own.client_authorities.clone(),
            min_version: own.min_version,
            authorities: Arc::clone(&rest.authorities),
            server_name: rest.server_name.clone(),
            identity,
            hsts: self.hsts,
            max_streams: self.max_streams,
            stream_timeout: self.stream_timeout,
        })
    }
}

/// Returns the cluster of a route of all requests, or of those whose client `presented` a certificate, and the
/// time that one may take.
fn lead(route: &Route, presented: bool) -> Result<(String, Duration), Fault> {
    let matches = route.matches.as_ref();
    let wanted = matches.filter(|own| {
        let context = own.tls_context.map(|own| own.presented);
        let all = own.prefix.as_deref() == Some("/") && own.headers.is_empty();
        let fits = context == presented.then_some(Some(true));
        all && own.connect_matcher.is_none() && fits
    });
    if wanted.is_none() {
        let why = "first the route of clients with a certificate is understood, then that of all";
        return Err(Fault::at("routes", why));
    }
    if !route.typed_per_filter_config.is_empty() {
        return Err(Fault::at(
            "routes",
            "typed_per_filter_config is not understood",
        ));
    }
    let action = route.route.as_ref();
    let action = action.ok_or_else(|| Fault::at("routes", "a route leads nowhere"))?;
    let cluster = action.cluster.as_deref().unwrap_or_default();
    let cluster = parts::name(cluster).within("routes.route.cluster")?;
    if action.cluster_header.is_some() {
        return Err(Fault::at(
            "routes.route.cluster_header",
            "it is not understood",
        ));
    }
    let field = "routes.route.timeout";
    // Envoy's default is 15 s, and zero is none.
    match parts::some_duration(field, action.timeout)? {
        Some(timeout) if !timeout.is_zero() => Ok((cluster, timeout)),
        Some(_) | None => Err(Fault::at(field, "it is missing, or zero")),
    }
}

fn hsts(headers: &[HeaderValueOption]) -> Result<Duration, Fault> {
    let values = headers.iter().filter_map(|own| own.header.as_ref());
    let mut found = Duration::ZERO;
    for header in values {
        let seconds = header.value.strip_prefix("max-age=");
        let seconds = seconds.filter(|_| header.key.eq_ignore_ascii_case(HSTS));
        let seconds = seconds.and_then(|text| text.parse().ok()).ok_or_else(|| {
            let why = format!("only {HSTS}: max-age=SECONDS is understood");
            Fault::at("response_headers_to_add", why)
        })?;
        found = Duration::from_secs(seconds);
    }
    Ok(found)
}

/// Returns the secret of the only certificate, if there is one.
fn certificate(common: &CommonTlsContext) -> Result<Option<Arc<str>>, Fault> {
    if !common.alpn_protocols.is_empty() && common.alpn_protocols != ALPN {
        let why = "only h2 and http/1.1 together are understood";
        return Err(Fault::at("alpn_protocols", why));
    }
    let field = "tls_certificate_sds_secret_configs";
    match common.tls_certificate_sds_secret_configs.as_slice() {
        [] => Ok(None),
        [one] => secret(one).within(field).map(Some),
        [_, _, ..] => Err(Fault::at(field, "only one is understood")),
    }
}

/// Returns the secret of the authorities, if there are any, and which names are accepted.
fn validation(
    common: &CommonTlsContext,
) -> Result<(Option<Arc<str>>, &[SubjectAltNameMatcher]), Fault> {
    if let Some(alone) = &common.validation_context_sds_secret_config {
        let name = secret(alone).within("validation_context_sds_secret_config")?;
        return Ok((Some(name), &[]));
    }
    let Some(combined) = &common.combined_validation_context else {
        return Ok((None, &[]));
    };
    let authorities = combined.validation_context_sds_secret_config.as_ref();
    let authorities = authorities.ok_or_else(|| Fault::new("it names no secret"));
    let name = authorities
        .and_then(secret)
        .within("combined_validation_context")?;
    let names = combined.default_validation_context.as_ref();
    Ok((
        Some(name),
        names.map_or(&[], |own| &own.match_typed_subject_alt_names),
    ))
}

fn is_dns_name(matcher: &SubjectAltNameMatcher, name: &str) -> bool {
    let exact = matcher
        .matcher
        .as_ref()
        .and_then(|own| own.pattern.as_ref());
    matcher.san_type == SAN_DNS && matches!(exact, Some(StringPattern::Exact(own)) if own == name)
}

fn secret(config: &SdsSecretConfig) -> Result<Arc<str>, Fault> {
    source_is_stream(config.sds_config.as_ref()).within("sds_config")?;
    parts::name(&config.name).within("name").map(Into::into)
}

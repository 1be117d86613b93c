//! How TLS ends in front of an API server, from what Gardener writes for that.
//!
//! ```text
//!   Gateway server ─ credentialName, minProtocolVersion ─▶ certificate, authorities of clients, version
//!   DestinationRule of SERVICE-mtls ─ credentialName, sni ─▶ identity, authorities and name of servers
//! ```
//!
//! What the gateway-wide filters do (identity headers, HSTS, time limits) the gateway always does.

use std::time::Duration;

use xds::Terminate;

use super::claims::Target;
use super::{GatewayEntry, policy};
use crate::state::{ClusterState, IstioServer, ObjectKey, authorities_of};

/// End of the Service whose rule has the identity.
const MTLS: &str = "-mtls";

/// The header that Gardener has set.
const HSTS: Duration = Duration::from_secs(31_536_000);
/// Gardener's limit of streams.
const MAX_STREAMS: u32 = 100;
/// Gardener's limit of a request.
const STREAM_TIMEOUT: Duration = Duration::from_secs(86_400);

/// Ends of the names of Secrets, which begin with the namespace of the API server that they are for.
const SERVING: [&str; 2] = ["-kube-apiserver-tls", "-kube-apiserver-wildcard-tls"];
const IDENTITY: &str = "-kube-apiserver-istio-mtls";

/// Returns how the TLS of a server of a gateway in front of `target` ends, or why it is passed through.
///
/// Gateway, Secrets and API server are of one namespace: who writes objects in another can neither show its
/// certificates nor have its own clients vouched for.
pub(super) fn of(
    state: &ClusterState,
    entry: &GatewayEntry,
    (gateway, server): (&ObjectKey, &IstioServer),
    target: &Target,
) -> Result<Terminate, String> {
    let tls = server.tls.as_ref().ok_or("it has no tls")?;
    if tls.mode != "OPTIONAL_MUTUAL" {
        return Err(format!(
            "clients are not asked for certificates by {}",
            tls.mode
        ));
    }
    if tls.credential_name.is_empty() {
        return Err("it has no credentialName".to_owned());
    }
    let min_version = match tls.min_protocol_version.as_str() {
        "" | "TLS_AUTO" | "TLSV1_0" | "TLSV1_1" | "TLSV1_2" => tls::MinVersion::Tls12,
        "TLSV1_3" => tls::MinVersion::Tls13,
        other => return Err(format!("minProtocolVersion {other} is not known")),
    };
    let ObjectKey { namespace, name } = &target.service;
    if gateway.namespace != *namespace {
        return Err(format!("its API server is in namespace {namespace}"));
    }
    let of_another = |name: &str| Err(format!("Secret {name} is none of namespace {namespace}"));
    let is = |name: &str, end| name.strip_prefix(&**namespace) == Some(end);
    if !SERVING.iter().any(|end| is(&tls.credential_name, end)) {
        return of_another(&tls.credential_name);
    }
    let toward = policy::of_service(state, entry, &target.service, target.port);
    if toward.is_some_and(|own| own["proxyProtocol"].is_object()) {
        return Err("a PROXY header goes to its API server".to_owned());
    }
    let service = ObjectKey::new(namespace, &format!("{name}{MTLS}"));
    let rule = policy::of_service(state, entry, &service, target.port);
    let rule = rule.ok_or_else(|| format!("Service {service} has no DestinationRule"))?;
    let rule = &rule["tls"];
    let text = |key: &str| rule[key].as_str().unwrap_or_default();
    let (identity, sni) = (text("credentialName"), text("sni"));
    if text("mode") != "MUTUAL" || identity.is_empty() {
        let why = "is not MUTUAL with a credentialName";
        return Err(format!("the DestinationRule of Service {service} {why}"));
    }
    if !is(identity, IDENTITY) {
        return of_another(identity);
    }
    let mut names = rule["subjectAltNames"].as_array().into_iter().flatten();
    if names.any(|name| name.as_str() != Some(sni)) {
        let why = "has other subjectAltNames than its sni";
        return Err(format!("the DestinationRule of Service {service} {why}"));
    }
    let server_name = sni.to_owned().try_into();
    let server_name = server_name
        .map_err(|_| format!("the sni of the DestinationRule of Service {service} is no name"))?;
    Ok(Terminate {
        certificate: tls.credential_name.as_str().into(),
        client_authorities: Some(authorities_of(&tls.credential_name).into()),
        min_version,
        authorities: authorities_of(identity).into(),
        server_name,
        identity: Some(identity.into()),
        hsts: HSTS,
        max_streams: MAX_STREAMS,
        stream_timeout: STREAM_TIMEOUT,
    })
}

/// Returns what is wrong with the Secrets of a gateway, each once.
pub(super) fn problems(state: &ClusterState, entry: &GatewayEntry, own: &Terminate) -> Vec<String> {
    let names = [Some(&own.certificate), own.identity.as_ref()];
    let keys = names
        .into_iter()
        .flatten()
        .map(|name| ObjectKey::new(&entry.namespace, name));
    let mut problems: Vec<_> = keys.filter_map(|key| state.secrets.problem(&key)).collect();
    problems.dedup();
    problems
}

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

/// Returns how the TLS of a server in front of `target` ends, or why it is passed through.
pub(super) fn of(
    state: &ClusterState,
    entry: &GatewayEntry,
    server: &IstioServer,
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
    let service = ObjectKey::new(namespace, &format!("{name}{MTLS}"));
    let rule = policy::tls_of(state, entry, &service, target.port);
    let rule = rule.ok_or_else(|| format!("Service {service} has no DestinationRule"))?;
    let text = |key: &str| rule[key].as_str().unwrap_or_default();
    let (identity, sni) = (text("credentialName"), text("sni"));
    if text("mode") != "MUTUAL" || identity.is_empty() {
        let why = "is not MUTUAL with a credentialName";
        return Err(format!("the DestinationRule of Service {service} {why}"));
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
    keys.filter_map(|key| state.secrets.problem(&key)).collect()
}

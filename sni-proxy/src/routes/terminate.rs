//! `terminate` of a route in the routing file.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustls::pki_types::ServerName;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use settings::{ConfigErrors, HumanDuration};

use crate::terminate::{MAX_CONNECTIONS, Params, hsts};

/// TLS ends in the gateway; paths are relative to the routing file, and read again when the files change.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct TerminateFile {
    /// What clients are shown.
    certificate: KeyPairFile,
    /// Authorities of client certificates, PEM; any of them is accepted. When absent no certificate is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    client_authorities: Option<PathBuf>,
    /// Lowest version of TLS.
    #[serde(default)]
    min_version: MinVersionFile,
    /// Time in the header `Strict-Transport-Security` of answers; 0s for no header.
    #[serde(default = "one_year")]
    hsts: HumanDuration,
    /// Toward API servers.
    upstream: UpstreamFile,
    /// Requests of one HTTP/2 connection at once.
    #[serde(default = "one_hundred")]
    max_streams: u32,
    /// Time that one request may take, a watch as well.
    #[serde(default = "one_day")]
    stream_timeout: HumanDuration,
}

/// A certificate with its chain, and its key; PEM.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct KeyPairFile {
    /// Certificate, followed by its chain.
    cert: PathBuf,
    /// Private key.
    key: PathBuf,
}

/// Toward API servers.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct UpstreamFile {
    /// Authorities of their certificates, PEM.
    authorities: PathBuf,
    /// Name that their certificates have.
    server_name: String,
    /// The front proxy's certificate, shown for clients that showed one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    identity: Option<KeyPairFile>,
    /// Connections of each worker to one endpoint, for clients with a certificate, for requests with a token that was
    /// accepted, for those with one that was not yet, and for others each; above it other endpoints are tried, then requests are answered 503.
    #[serde(default = "max_connections")]
    max_connections: u32,
}

/// A version of TLS.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, Serialize)]
enum MinVersionFile {
    /// RFC 5246.
    #[default]
    #[serde(rename = "1.2")]
    Tls12,
    /// RFC 8446.
    #[serde(rename = "1.3")]
    Tls13,
}

impl TerminateFile {
    /// Returns what is meant, with paths below `directory`.
    pub(super) fn params(
        &self,
        directory: &Path,
        cluster: &str,
        key: &str,
        errors: &mut ConfigErrors,
    ) -> Option<Params> {
        let at = |path: &PathBuf| directory.join(path);
        let pair = |own: &KeyPairFile| tls::KeyPair::Files {
            cert: at(&own.cert),
            key: at(&own.key),
        };
        let file = |path: &PathBuf| tls::Origin::File(at(path));
        if self.client_authorities.is_some() && self.upstream.identity.is_none() {
            let why = "without upstream.identity API servers would not be told who a client is";
            errors.add(format!("{key}.clientAuthorities"), why);
        }
        if self.max_streams == 0 {
            errors.add(format!("{key}.maxStreams"), "0 would permit no request");
        }
        if self.upstream.max_connections == 0 {
            let key = format!("{key}.upstream.maxConnections");
            errors.add(key, "0 would permit no request");
        }
        if self.stream_timeout.0.is_zero() {
            errors.add(format!("{key}.streamTimeout"), "0s would end every request");
        }
        let server_name = match ServerName::try_from(self.upstream.server_name.clone()) {
            Ok(name) => name,
            Err(error) => {
                errors.add(format!("{key}.upstream.serverName"), error);
                return None;
            }
        };
        Some(Params {
            cluster: cluster.to_owned(),
            tls: tls::TerminatingParams {
                certificate: pair(&self.certificate),
                client_ca: self.client_authorities.as_ref().map(file),
                min_version: match self.min_version {
                    MinVersionFile::Tls12 => tls::MinVersion::Tls12,
                    MinVersionFile::Tls13 => tls::MinVersion::Tls13,
                },
                upstream_ca: file(&self.upstream.authorities),
                identity: self.upstream.identity.as_ref().map(pair),
            },
            server_name,
            hsts: hsts(self.hsts.0),
            max_streams: self.max_streams,
            max_connections: self.upstream.max_connections,
            stream_timeout: self.stream_timeout.0,
        })
    }
}

fn one_hundred() -> u32 {
    100
}

/// What Envoy's circuit breakers permit by default; with HTTP/2 100 times as many requests.
fn max_connections() -> u32 {
    MAX_CONNECTIONS
}

fn one_day() -> HumanDuration {
    HumanDuration(Duration::from_secs(24 * 3600))
}

fn one_year() -> HumanDuration {
    HumanDuration(Duration::from_secs(365 * 24 * 3600))
}

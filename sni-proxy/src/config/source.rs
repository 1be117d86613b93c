//! Where routes come from: a file, or a server with its certificates and its cache.
//!
//! Reads none of them; that is `routing`'s and `subscription`'s.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use settings::{ConfigErrors, RelPath};

/// Where routes come from; exactly one of `file` and `xds`.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[schemars(rename = "RoutingFile")]
pub(crate) struct RoutingSettings {
    /// The routing file, read again when it changes.
    #[serde(default, skip_serializing_if = "RelPath::is_empty")]
    file: RelPath,
    /// The server that is asked for routes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    xds: Option<XdsSettings>,
}

/// The server that is asked for routes, over xDS.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[schemars(rename = "XdsFile")]
pub(crate) struct XdsSettings {
    /// Its URL: `https://host:port`, or `http://host:port` without TLS.
    server: String,
    /// CA that its certificate is signed by; needed for https.
    #[serde(default, skip_serializing_if = "RelPath::is_empty")]
    ca: RelPath,
    /// Our certificate, where the server asks for one.
    #[serde(default, skip_serializing_if = "RelPath::is_empty")]
    cert: RelPath,
    /// Its key.
    #[serde(default, skip_serializing_if = "RelPath::is_empty")]
    key: RelPath,
    /// Name of this gateway's pod (`node.id`).
    node: String,
    /// Name of the gateway whose routes are wanted (`node.cluster`).
    #[serde(default = "default_gateway")]
    gateway: String,
    /// Directory of the last good routes, which are used until the server answers; none when
    /// absent.
    #[serde(default, skip_serializing_if = "RelPath::is_empty")]
    cache: RelPath,
}

fn default_gateway() -> String {
    "default".to_owned()
}

/// Where routes come from.
#[derive(Clone, Debug)]
pub(crate) enum RouteSource {
    /// A routing file.
    File(PathBuf),
    /// A server.
    Xds(Box<XdsConfig>),
}

/// The server that is asked for routes.
#[derive(Clone, Debug)]
pub(crate) struct XdsConfig {
    pub(crate) server: xds::ServerAddress,
    pub(crate) tls: Option<tls::ClientTlsParams>,
    pub(crate) node: String,
    pub(crate) gateway: String,
    /// The file of the last good routes.
    pub(crate) cache: Option<PathBuf>,
}

impl XdsConfig {
    /// Tells whether secrets are asked for, which needs the certificates of both sides.
    pub(crate) fn asks_for_secrets(&self) -> bool {
        self.server.is_tls() && self.tls.as_ref().is_some_and(|tls| tls.cert.is_some())
    }
}

impl Default for RouteSource {
    fn default() -> Self {
        Self::File(PathBuf::new())
    }
}

impl RoutingSettings {
    /// Tells whether routes come from a server.
    pub(super) fn is_xds(&self) -> bool {
        self.xds.is_some()
    }

    /// Returns the one source that is configured, some source after an error.
    pub(super) fn source(&self, origin: &Path, errors: &mut ConfigErrors) -> RouteSource {
        let file = RouteSource::File(self.file.resolve(origin));
        match &self.xds {
            None if self.file.is_empty() => {
                errors.add("routing", "one of file and xds is needed");
                file
            }
            None => file,
            Some(_) if !self.file.is_empty() => {
                errors.add("routing", "file and xds exclude each other");
                file
            }
            Some(xds) => xds
                .config(origin, errors)
                .map_or(file, |xds| RouteSource::Xds(Box::new(xds))),
        }
    }
}

impl XdsSettings {
    fn config(&self, origin: &Path, errors: &mut ConfigErrors) -> Option<XdsConfig> {
        for (key, value) in [("node", &self.node), ("gateway", &self.gateway)] {
            if value.is_empty() {
                errors.add(format!("routing.xds.{key}"), "must be given");
            }
        }
        let server = self.server.parse::<xds::ServerAddress>();
        let server = server
            .map_err(|error| errors.add("routing.xds.server", error))
            .ok()?;
        let path = |path: &RelPath| (!path.is_empty()).then(|| path.resolve(origin));
        let (ca, cert, key) = (path(&self.ca), path(&self.cert), path(&self.key));
        if cert.is_some() != key.is_some() {
            errors.add("routing.xds", "cert and key go together");
        }
        let tls = match (server.is_tls(), ca) {
            (true, Some(ca)) => Some(tls::ClientTlsParams {
                ca,
                cert,
                key,
                alpn: vec![b"h2".to_vec()],
            }),
            (true, None) => {
                errors.add("routing.xds.ca", "must be given for https");
                None
            }
            (false, None) if cert.is_none() => {
                if !server.is_loopback() {
                    let why = "must be https, because it is not on this host";
                    errors.add("routing.xds.server", why);
                }
                None
            }
            (false, _) => {
                errors.add("routing.xds.server", "certificates are for https only");
                None
            }
        };
        Some(XdsConfig {
            server,
            tls,
            node: self.node.clone(),
            gateway: self.gateway.clone(),
            cache: path(&self.cache).map(|directory| directory.join(CACHE_FILE)),
        })
    }
}

/// Name of the file with the last good routes, in the directory that is configured for it.
const CACHE_FILE: &str = "routes.cache";

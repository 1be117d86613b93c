//! How an API server reaches what is inside its cluster: `EgressSelectorConfiguration`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::certs::IdentityFiles;

#[derive(Clone, Debug)]
pub enum Egress {
    GrpcUds(PathBuf),
    /// HTTP CONNECT over TCP and TLS, with certificates on both sides.
    HttpConnectTls {
        /// The proxy server in the URL, `host:port`. The API server sends a host that is a name
        /// as SNI, and must be able to resolve it ([`KubeParams::hosts`](super::KubeParams)).
        server: String,
        /// The authority of the proxy server's certificate.
        authority: PathBuf,
        identity: IdentityFiles,
    },
    HttpConnectUds(PathBuf),
}

impl Egress {
    /// Writes the configuration, for `cluster`, to `path`.
    pub fn write(&self, path: &Path) -> Result<()> {
        let text = json!({
            "apiVersion": "apiserver.k8s.io/v1beta1",
            "kind": "EgressSelectorConfiguration",
            "egressSelections": [{ "name": "cluster", "connection": self.connection() }],
        });
        std::fs::write(path, format!("{text:#}\n"))
            .with_context(|| format!("writing {}", path.display()))
    }

    fn connection(&self) -> Value {
        let uds = |path: &Path| json!({ "uds": { "udsName": path } });
        match self {
            Self::GrpcUds(path) => json!({ "proxyProtocol": "GRPC", "transport": uds(path) }),
            Self::HttpConnectTls {
                server,
                authority,
                identity,
            } => json!({
                "proxyProtocol": "HTTPConnect",
                "transport": { "tcp": {
                    "url": format!("https://{server}"),
                    "tlsConfig": {
                        "caBundle": authority,
                        "clientCert": identity.cert,
                        "clientKey": identity.key,
                    },
                } },
            }),
            Self::HttpConnectUds(path) => {
                json!({ "proxyProtocol": "HTTPConnect", "transport": uds(path) })
            }
        }
    }
}

//! One tenant as it is served: who its peers are, what they may use, how they reach it.
//!
//! ```text
//!   a.yaml, or flags ──▶ TenantSpec ──▶ compared with the one before: keep or cut its peers
//! ```
//!
//! Plain values that never change; a changed tenant is another value.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use clap::ValueEnum;
use knp_proto::{Strategy, TenantId, TenantLimits};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::authorities::Authorities;
use crate::token::{KeySet, TokenRules};

telemetry::labels! {
    /// One of the two ports where peers show who they are.
    pub(crate) enum Port {
        /// Where agents connect.
        Agents = "agents",
        /// Where API servers connect.
        Frontends = "frontends",
    }
}

/// What API servers speak to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum FrontendMode {
    /// One gRPC stream per tunnel.
    Grpc,
    /// HTTP/1.1 CONNECT.
    HttpConnect,
}

/// A socket in the file system for the frontends of one tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UdsSpec {
    /// Where it is; absolute when it comes from a registry. At most 107 bytes.
    pub(crate) path: PathBuf,
    /// What is spoken there.
    pub(crate) mode: FrontendMode,
}

/// How the tokens of a tenant's agents are judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TokenSpec {
    /// What they must say. The issuer is always there in a registry, never with upstream's flags.
    pub(crate) rules: TokenRules,
    /// The issuer's public keys, for checks without an API server.
    pub(crate) keys: Option<KeySet>,
    /// How to reach an API server for reviews. With neither this nor keys: as a pod in its own
    /// tenant, which only a server of a single tenant does.
    pub(crate) kubeconfig: Option<PathBuf>,
    /// SHA-256 of what [`Self::kubeconfig`] says, so that a changed one is told from the same.
    pub(crate) kubeconfig_digest: Option<[u8; 32]>,
}

/// How certificates name a tenant on one port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CertificateSpec {
    /// Who vouches; several during a rotation.
    pub(crate) authorities: Arc<Authorities>,
    /// For whom: those with one of these URIs among their alternative names. Where there is a single
    /// tenant, `None` means all, as upstream has it.
    pub(crate) identities: Option<BTreeSet<String>>,
}

impl CertificateSpec {
    /// Whether peers that came in by `older` are still welcome. Authorities rotate one by one, so
    /// one in common is enough; replaced outright they are another tenant's.
    fn keeps(&self, older: &Self) -> bool {
        let covered = match (&self.identities, &older.identities) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(now), Some(before)) => now.is_superset(before),
        };
        covered && self.authorities.shares_one_with(&older.authorities)
    }
}

/// One tenant as it is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TenantSpec {
    /// Its name: a DNS label.
    pub(crate) id: TenantId,
    /// Server names that mean it, in lower case, in order.
    pub(crate) server_names: Vec<String>,
    /// How an agent is chosen, in order.
    pub(crate) strategies: Vec<Strategy>,
    /// How many servers there are, for agents that are told so.
    pub(crate) server_count: u32,
    /// Its bounds.
    pub(crate) limits: TenantLimits,
    /// How its agents' certificates are known.
    pub(crate) agent_certificates: Option<CertificateSpec>,
    /// How its agents' tokens are known.
    pub(crate) tokens: Option<TokenSpec>,
    /// How its frontends' certificates are known.
    pub(crate) frontend_certificates: Option<CertificateSpec>,
    /// Its frontends' socket.
    pub(crate) uds: Option<UdsSpec>,
}

impl TenantSpec {
    /// Returns how certificates are known on `port`.
    pub(crate) fn certificates(&self, port: Port) -> Option<&CertificateSpec> {
        match port {
            Port::Agents => self.agent_certificates.as_ref(),
            Port::Frontends => self.frontend_certificates.as_ref(),
        }
    }

    /// Returns the URIs by which certificates are known on `port`, unless all of them are.
    pub(super) fn uris(&self, port: Port) -> Option<&BTreeSet<String>> {
        self.certificates(port)?.identities.as_ref()
    }

    /// Whether agents need to show nothing, as with upstream's server without a CA. Only where
    /// there is a single tenant; a registry's file always says how agents are known.
    pub(crate) fn admits_any_agent(&self) -> bool {
        self.agent_certificates.is_none() && self.tokens.is_none()
    }

    /// Whether every peer of `older`, a definition of the same tenant, is still one: no identity,
    /// account, or all authorities of a port were taken away.
    pub(crate) fn keeps_peers_of(&self, older: &Self) -> bool {
        let certificates_kept = |port| match older.certificates(port) {
            Some(before) => (self.certificates(port)).is_some_and(|now| now.keeps(before)),
            None => true,
        };
        // Keys may differ: they rotate.
        let tokens_kept = older.tokens.as_ref().is_none_or(|before| {
            let now = self.tokens.as_ref();
            now.is_some_and(|now| now.rules == before.rules)
        });
        // Who came without showing anything has nothing that a new rule could know them by.
        let open_kept = self.admits_any_agent() || !older.admits_any_agent();
        tokens_kept && open_kept && Port::ALL.into_iter().all(certificates_kept)
    }
}

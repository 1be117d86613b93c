//! What two tenants must not share, and who gets it.
//!
//! ```text
//!   candidates ─▶ claims: name, socket, account, (authority, URI) ─▶ twice? the newcomer yields
//! ```
//!
//! What is active stays; of two newcomers neither gets what both claim, for it is unknown whose
//! it is, and giving one tenant's identity to another is the one mistake that must not happen.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use knp_proto::TenantId;

use crate::registry::authorities::Print;
use crate::registry::spec::{Port, TenantSpec};
use crate::token::TokenRules;

/// Something that belongs to one tenant, and to one role in it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Claim {
    Account(TokenRules),
    Certificate { authority: Print, uri: String },
    ServerName(String),
    Socket(PathBuf),
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Account(rules) => {
                let issuer = rules.issuer.as_deref().unwrap_or_default();
                let (namespace, account) = (&rules.namespace, &rules.service_account);
                let audience = &rules.audience;
                write!(
                    f,
                    "the account {namespace}/{account} of {issuer} for {audience}"
                )
            }
            Self::Certificate { uri, .. } => write!(f, "{uri} of the same authority"),
            Self::ServerName(name) => write!(f, "the name {name}"),
            Self::Socket(path) => write!(f, "the socket {}", path.display()),
        }
    }
}

/// Removes from `candidates` what claims something of another's, or puts what is active in its
/// place, until none does. `refuse` is called for each with the reason.
pub(super) fn settle(
    candidates: &mut BTreeMap<TenantId, Arc<TenantSpec>>,
    in_force: &BTreeMap<TenantId, Arc<TenantSpec>>,
    mut refuse: impl FnMut(&TenantId, String),
) {
    // Every round takes at least one newcomer away, and what is active is free of conflicts.
    loop {
        let yielding = yielding(candidates, in_force);
        if yielding.is_empty() {
            return;
        }
        for (id, reason) in yielding {
            refuse(&id, reason);
            match in_force.get(&id) {
                // It conflicts with itself, or is active already: nothing to go back to.
                Some(kept) if candidates.get(&id) != Some(kept) => {
                    candidates.insert(id, kept.clone());
                }
                Some(_) | None => {
                    candidates.remove(&id);
                }
            }
        }
    }
}

/// Returns who must yield, with the first reason.
fn yielding(
    candidates: &BTreeMap<TenantId, Arc<TenantSpec>>,
    in_force: &BTreeMap<TenantId, Arc<TenantSpec>>,
) -> BTreeMap<TenantId, String> {
    let newcomer = |id: &TenantId| match (candidates.get(id), in_force.get(id)) {
        (Some(candidate), Some(kept)) => !Arc::ptr_eq(candidate, kept),
        (Some(_), None) | (None, _) => true,
    };
    let mut owners: BTreeMap<Claim, (TenantId, &'static str)> = BTreeMap::new();
    let mut yielding = BTreeMap::new();
    for (id, spec) in candidates {
        for (claim, key) in claims(spec) {
            let Some((owner, owners_key)) = owners.get(&claim) else {
                owners.insert(claim, (id.clone(), key));
                continue;
            };
            if owner == id && *owners_key == key {
                continue;
            }
            let tell = |key: &str, other: &TenantId, others_key: &str| {
                format!("{key}: {claim} is claimed by tenant {other} too ({others_key})")
            };
            let (mine, theirs) = (newcomer(id), newcomer(owner));
            if mine || !theirs {
                let reason = tell(key, owner, owners_key);
                yielding.entry(id.clone()).or_insert(reason);
            }
            if theirs && owner != id {
                let reason = tell(owners_key, id, key);
                yielding.entry(owner.clone()).or_insert(reason);
            }
        }
    }
    yielding
}

/// Returns what a tenant claims, with the key that says so.
fn claims(spec: &TenantSpec) -> Vec<(Claim, &'static str)> {
    let mut claims: Vec<_> = spec
        .server_names
        .iter()
        .map(|name| (Claim::ServerName(name.clone()), "serverNames"))
        .collect();
    if let Some(uds) = &spec.uds {
        claims.push((Claim::Socket(uds.path.clone()), "frontends.uds.path"));
    }
    if let Some(tokens) = &spec.tokens {
        claims.push((Claim::Account(tokens.rules.clone()), "agents.tokens"));
    }
    for port in Port::ALL {
        let key = match port {
            Port::Agents => "agents.certificates.identities",
            Port::Frontends => "frontends.certificates.identities",
        };
        let Some(certificates) = spec.certificates(port) else {
            continue;
        };
        for uri in certificates.identities.iter().flatten() {
            for &authority in certificates.authorities.prints() {
                let uri = uri.clone();
                claims.push((Claim::Certificate { authority, uri }, key));
            }
        }
    }
    claims
}

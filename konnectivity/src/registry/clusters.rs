//! The clusters that are served at one moment, and who belongs to which.
//!
//! ```text
//!   specs ─▶ Clusters ─┬─ server name ─▶ cluster ─▶ tls(): only its authorities
//!                      ├─ no such name ──────────▶ tls(): those that know the certificate's URI
//!                      └─ Index: URI ─▶ whose authorities must vouch ─▶ identify()
//! ```
//!
//! A snapshot never changes. TLS settings are made when a handshake first needs them, and stay with
//! a cluster for as long as its definition does, also in later snapshots. Reads no files.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, OnceLock};

use knp_proto::ClusterId;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::{CertificateError, ServerConfig};
use tls::SubjectAltName;

use super::authorities::Authorities;
use super::spec::{ClusterSpec, Identities, Port};
use super::tls::{Asked, TlsPorts};

/// An immutable snapshot of the clusters.
pub(crate) struct Clusters {
    entries: BTreeMap<ClusterId, Entry>,
    by_name: BTreeMap<String, Arc<ClusterSpec>>,
    /// The one cluster there is, whatever name a peer asks for.
    single: Option<Arc<ClusterSpec>>,
    any_tokens: bool,
    index: Arc<Index>,
    ports: Arc<TlsPorts>,
    unions: PerPort,
}

#[derive(Clone)]
struct Entry {
    spec: Arc<ClusterSpec>,
    tls: Arc<PerPort>,
}

/// Settings of the two ports, once needed.
#[derive(Default)]
struct PerPort {
    agents: OnceLock<Arc<ServerConfig>>,
    frontends: OnceLock<Arc<ServerConfig>>,
}

impl PerPort {
    fn of(&self, port: Port) -> &OnceLock<Arc<ServerConfig>> {
        match port {
            Port::Agents => &self.agents,
            Port::Frontends => &self.frontends,
        }
    }
}

impl Clusters {
    /// Makes the snapshot of a registry. Settings of clusters that are the same as in `older` are
    /// taken over.
    pub(super) fn new(
        specs: impl IntoIterator<Item = Arc<ClusterSpec>>,
        ports: Arc<TlsPorts>,
        older: Option<&Self>,
    ) -> Self {
        let mut entries = BTreeMap::new();
        let mut by_name = BTreeMap::new();
        let mut index = Index::default();
        for spec in specs {
            for name in &spec.server_names {
                by_name.insert(name.clone(), spec.clone());
            }
            index.add(&spec);
            let kept = older.and_then(|older| older.entries.get(&spec.id));
            let entry = match kept {
                Some(entry) if entry.spec == spec => entry.clone(),
                Some(_) | None => Entry {
                    spec: spec.clone(),
                    tls: Arc::default(),
                },
            };
            entries.insert(spec.id.clone(), entry);
        }
        Self {
            any_tokens: entries.values().any(|entry| entry.spec.tokens.is_some()),
            entries,
            by_name,
            single: None,
            index: Arc::new(index),
            ports,
            unions: PerPort::default(),
        }
    }

    /// Makes the snapshot of the one cluster that every peer belongs to.
    pub(super) fn single(
        specs: impl IntoIterator<Item = Arc<ClusterSpec>>,
        ports: Arc<TlsPorts>,
        older: Option<&Self>,
    ) -> Self {
        let mut clusters = Self::new(specs, ports, older);
        let only = clusters.all().next().cloned();
        clusters.single = only;
        clusters
    }

    /// Returns all clusters, ordered by id.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<ClusterSpec>> {
        self.entries.values().map(|entry| &entry.spec)
    }

    /// Returns how many there are.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the cluster `id`.
    pub(crate) fn get(&self, id: &ClusterId) -> Option<&Arc<ClusterSpec>> {
        self.entries.get(id).map(|entry| &entry.spec)
    }

    /// Returns the cluster that a server name means, whatever its case.
    pub(crate) fn by_server_name(&self, name: &str) -> Option<&Arc<ClusterSpec>> {
        let name = name.strip_suffix('.').unwrap_or(name);
        if name.bytes().any(|octet| octet.is_ascii_uppercase()) {
            return self.by_name.get(&name.to_ascii_lowercase());
        }
        self.by_name.get(name)
    }

    /// Returns the TLS settings of a handshake: with a server name that means a cluster, only that
    /// cluster's authorities vouch; otherwise those of the clusters that know the certificate's
    /// URI. Tokens make certificates optional on the agents' port. Where the port has no
    /// certificate of its own, the handshake fails.
    pub(crate) fn tls(&self, port: Port, server_name: Option<&str>) -> Arc<ServerConfig> {
        let entry = self
            .meant(server_name)
            .and_then(|spec| self.entries.get(&spec.id));
        match entry {
            Some(entry) => entry.tls.of(port).get_or_init(|| self.of_one(port, entry)),
            None => self.unions.of(port).get_or_init(|| {
                let mandatory = port == Port::Frontends || !self.any_tokens;
                self.ports
                    .config(port, Asked::All(self.index.clone()), mandatory)
            }),
        }
        .clone()
    }

    fn of_one(&self, port: Port, entry: &Entry) -> Arc<ServerConfig> {
        let spec = &entry.spec;
        match (spec.certificates(port), port) {
            (Some(certificates), Port::Agents) => self.ports.config(
                port,
                Asked::One(certificates.authorities.clone()),
                spec.tokens.is_none(),
            ),
            (Some(certificates), Port::Frontends) => {
                let asked = Asked::One(certificates.authorities.clone());
                self.ports.config(port, asked, true)
            }
            (None, Port::Agents) => self.ports.config(port, Asked::Nobody, false),
            (None, Port::Frontends) => self.ports.refusing(),
        }
    }

    /// Returns the cluster that peers with this server name must belong to, if the name says so.
    pub(super) fn meant(&self, server_name: Option<&str>) -> Option<&Arc<ClusterSpec>> {
        self.single
            .as_ref()
            .or_else(|| self.by_server_name(server_name?))
    }

    /// Whether a server name that means no cluster is refused.
    pub(super) fn names_count(&self) -> bool {
        self.single.is_none() && !self.by_name.is_empty()
    }

    /// Whether the agents of any cluster may show tokens.
    pub(super) fn any_tokens(&self) -> bool {
        self.any_tokens
    }

    /// Returns the identities of all clusters.
    pub(super) fn index(&self) -> &Index {
        &self.index
    }
}

impl fmt::Debug for Clusters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.entries.keys()).finish()
    }
}

/// Which clusters know a URI, and in which role.
#[derive(Default)]
pub(super) struct Index {
    by_uri: BTreeMap<String, Vec<Claim>>,
}

/// One cluster's word that a URI is a peer of its own on a port, if its authorities vouch.
#[derive(Clone)]
pub(super) struct Claim {
    pub(super) spec: Arc<ClusterSpec>,
    pub(super) port: Port,
}

impl Index {
    fn add(&mut self, spec: &Arc<ClusterSpec>) {
        for port in Port::ALL {
            let Some(certificates) = spec.certificates(port) else {
                continue;
            };
            match &certificates.identities {
                Identities::Any => {}
                Identities::Uris(uris) => {
                    for uri in uris {
                        let spec = spec.clone();
                        let claims = self.by_uri.entry(uri.clone()).or_default();
                        claims.push(Claim { spec, port });
                    }
                }
            }
        }
    }

    /// Returns who knows any of `uris`, in a fixed order, at most [`MAX_CLAIMS`] and one.
    pub(super) fn claims(&self, uris: &BTreeSet<String>) -> Vec<Claim> {
        let mut known = BTreeMap::new();
        let claims = uris.iter().filter_map(|uri| self.by_uri.get(uri)).flatten();
        for claim in claims {
            known
                .entry((claim.spec.id.clone(), claim.port))
                .or_insert_with(|| claim.clone());
            if known.len() > MAX_CLAIMS {
                break;
            }
        }
        known.into_values().collect()
    }

    /// Verifies a client's chain by the authorities of whoever knows one of its URIs.
    ///
    /// # Errors
    /// Nobody knows it, or whoever does has no authority that vouches for it.
    pub(super) fn vouch_for(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), rustls::Error> {
        let uris = uris(leaf).ok_or(CertificateError::BadEncoding)?;
        let mut refused = CertificateError::ApplicationVerificationFailure.into();
        let claims = self.claims(&uris);
        if claims.len() > MAX_CLAIMS {
            return Err(refused);
        }
        for claim in claims {
            let Some(certificates) = claim.spec.certificates(claim.port) else {
                continue;
            };
            match certificates.authorities.vouch_for(leaf, intermediates, now) {
                Ok(()) => return Ok(()),
                Err(error) => refused = error,
            }
        }
        Err(refused)
    }
}

/// Returns the roles in which one cluster knows any of `uris`.
pub(super) fn claims_of(spec: &Arc<ClusterSpec>, uris: &BTreeSet<String>) -> Vec<Claim> {
    let knows = |port: &Port| match spec.certificates(*port).map(|given| &given.identities) {
        Some(Identities::Uris(known)) => !known.is_disjoint(uris),
        Some(Identities::Any) | None => false,
    };
    let claim = |port| Claim {
        spec: spec.clone(),
        port,
    };
    Port::ALL.into_iter().filter(knows).map(claim).collect()
}

impl Claim {
    /// Returns who must vouch for it.
    pub(super) fn authorities(&self) -> Option<&Arc<Authorities>> {
        self.spec
            .certificates(self.port)
            .map(|certificates| &certificates.authorities)
    }
}

/// Returns the URIs among a certificate's alternative names, or nothing if it is none.
pub(super) fn uris(leaf: &CertificateDer<'_>) -> Option<BTreeSet<String>> {
    let names = tls::subject_alt_names(leaf).ok()?;
    let uris = names.into_iter().filter_map(|name| match name {
        SubjectAltName::Uri(uri) => Some(uri),
        SubjectAltName::Dns(_) => None,
    });
    Some(uris.collect())
}

/// The most clusters that are tried for one certificate: each try may cost a verification of a
/// signature or two, about 0.1 ms. More clusters may know one URI, each with its own authority, when
/// peers give a server name; it leads to one of them.
pub(super) const MAX_CLAIMS: usize = 32;

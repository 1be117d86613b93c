//! The tenants that are served at one moment, and who belongs to which.
//!
//! ```text
//!   specs ─▶ Tenants ──┬─ agent, server name ─▶ tenant ─▶ tls(): only its authorities
//!                      ├─ frontend, server name ─▶ tenant ─▶ tls(): its authorities first
//!                      ├─ no such name ──────────▶ tls(): those that know the certificate's URI
//!                      └─ Index: URI ─▶ whose authorities must vouch ─▶ identify()
//! ```
//!
//! All API servers of a seed may ask for one name, that of the Service in front of this server. So a
//! frontend's name selects among the tenants that its certificate fits, and refuses nothing.
//!
//! A snapshot never changes. TLS settings are made when a handshake first needs them; a tenant's
//! settings for agents depend on that tenant alone and stay for as long as its definition does, also
//! in later snapshots. Reads no files.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use knp_proto::TenantId;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::{CertificateError, ServerConfig};
use tls::SubjectAltName;

use super::authorities::Authorities;
use super::spec::{Port, TenantSpec};
use super::tls::{TlsPorts, Trust};

/// An immutable snapshot of the tenants.
pub(crate) struct Tenants {
    entries: BTreeMap<TenantId, Entry>,
    pub(super) by_name: BTreeMap<String, Arc<TenantSpec>>,
    /// The one tenant there is, whatever name a peer asks for.
    pub(super) single: Option<Arc<TenantSpec>>,
    /// Whether the agents of any tenant may show tokens.
    pub(super) any_tokens: bool,
    pub(super) index: Arc<Index>,
    ports: Arc<TlsPorts>,
    /// Settings for peers that ask for no tenant by name, by [`Port`].
    unions: [OnceLock<Arc<ServerConfig>>; 2],
}

struct Entry {
    spec: Arc<TenantSpec>,
    /// Settings for peers that ask for the tenant by name, by [`Port`]. Those for agents are shared
    /// with later snapshots; in those for frontends other tenants' authorities have a say.
    tls: [Arc<OnceLock<Arc<ServerConfig>>>; 2],
}

impl Tenants {
    /// Makes a snapshot; with `single`, every peer belongs to the one tenant there is. Settings of
    /// tenants that are the same as in `older` are taken over.
    pub(super) fn new(
        specs: impl IntoIterator<Item = Arc<TenantSpec>>,
        single: bool,
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
            let kept = kept.filter(|entry| entry.spec == spec);
            let agents = kept.map(|entry| entry.tls[Port::Agents as usize].clone());
            let tls = [agents.unwrap_or_default(), Arc::default()];
            entries.insert(spec.id.clone(), Entry { spec, tls });
        }
        Self {
            single: (entries.values().next())
                .filter(|_| single)
                .map(|entry| entry.spec.clone()),
            any_tokens: entries.values().any(|entry| entry.spec.tokens.is_some()),
            entries,
            by_name,
            index: Arc::new(index),
            ports,
            unions: Default::default(),
        }
    }

    /// Returns all tenants, ordered by id.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<TenantSpec>> {
        self.entries.values().map(|entry| &entry.spec)
    }

    /// Returns the tenant `id`.
    pub(crate) fn get(&self, id: &TenantId) -> Option<&Arc<TenantSpec>> {
        self.entries.get(id).map(|entry| &entry.spec)
    }

    /// Returns the tenant that a server name means, whatever its case.
    pub(crate) fn by_server_name(&self, name: &str) -> Option<&Arc<TenantSpec>> {
        let name = name.strip_suffix('.').unwrap_or(name);
        if name.bytes().any(|byte| byte.is_ascii_uppercase()) {
            return self.by_name.get(&name.to_ascii_lowercase());
        }
        self.by_name.get(name)
    }

    /// Returns the TLS settings of a handshake. With a server name that means a tenant, only that
    /// tenant's authorities vouch for an agent, and they are asked first about a frontend;
    /// otherwise those of the tenants that know the certificate's URI vouch. Tokens make
    /// certificates optional on the agents' port. Where the port has no certificate of its own, the
    /// handshake fails.
    pub(crate) fn tls(&self, port: Port, server_name: Option<&str>) -> Arc<ServerConfig> {
        let entry = self
            .meant(server_name)
            .and_then(|spec| self.entries.get(&spec.id));
        match entry {
            Some(entry) => entry.tls[port as usize].get_or_init(|| self.of_one(port, &entry.spec)),
            None => self.unions[port as usize].get_or_init(|| self.of_all(port, None)),
        }
        .clone()
    }

    fn of_all(&self, port: Port, first: Option<Arc<TenantSpec>>) -> Arc<ServerConfig> {
        let mandatory = port == Port::Frontends || !self.any_tokens;
        let index = self.index.clone();
        let trust = Trust::All { index, first };
        self.ports.config(port, Some(trust), mandatory)
    }

    fn of_one(&self, port: Port, spec: &Arc<TenantSpec>) -> Arc<ServerConfig> {
        if port == Port::Frontends && self.single.is_none() {
            return self.of_all(port, Some(spec.clone()));
        }
        let trust = spec.certificates(port);
        let trust = trust.map(|certificates| Trust::One(certificates.authorities.clone()));
        if port == Port::Frontends && trust.is_none() {
            return self.ports.refusing();
        }
        let mandatory = port == Port::Frontends || spec.tokens.is_none();
        self.ports.config(port, trust, mandatory)
    }

    /// Returns the tenant that a server name means, or the only one there is.
    pub(super) fn meant(&self, server_name: Option<&str>) -> Option<&Arc<TenantSpec>> {
        self.single
            .as_ref()
            .or_else(|| self.by_server_name(server_name?))
    }
}

/// Which tenants know a URI, and in which role.
#[derive(Debug, Default)]
pub(super) struct Index {
    by_uri: BTreeMap<String, Vec<Claim>>,
}

/// One tenant's word that a URI is a peer of its own on a port, if its authorities vouch.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    pub(super) spec: Arc<TenantSpec>,
    pub(super) port: Port,
}

impl Index {
    fn add(&mut self, spec: &Arc<TenantSpec>) {
        for port in Port::ALL {
            for uri in spec.uris(port).into_iter().flatten() {
                let spec = spec.clone();
                let claims = self.by_uri.entry(uri.clone()).or_default();
                claims.push(Claim { spec, port });
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

    /// Verifies a client's chain by the authorities of the tenants that know one of its URIs,
    /// those of `first` before all others.
    ///
    /// # Errors
    /// No tenant knows it, or none of those that do has an authority that vouches for it.
    pub(super) fn vouch_for(
        &self,
        first: Option<&Arc<TenantSpec>>,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), rustls::Error> {
        let uris = uris(leaf).ok_or(CertificateError::BadEncoding)?;
        let vouched = |claims: &[Claim]| {
            let mut refused = CertificateError::ApplicationVerificationFailure.into();
            for authorities in claims.iter().filter_map(Claim::authorities) {
                match authorities.vouch_for(leaf, intermediates, now) {
                    Ok(()) => return Ok(()),
                    Err(error) => refused = error,
                }
            }
            Err(refused)
        };
        if first.is_some_and(|first| vouched(&claims_of(first, &uris)).is_ok()) {
            return Ok(());
        }
        match self.claims(&uris) {
            claims if claims.len() > MAX_CLAIMS => {
                Err(CertificateError::ApplicationVerificationFailure.into())
            }
            claims => vouched(&claims),
        }
    }
}

/// Returns the roles in which one tenant knows any of `uris`.
pub(super) fn claims_of(spec: &Arc<TenantSpec>, uris: &BTreeSet<String>) -> Vec<Claim> {
    let knows = |port: &Port| (spec.uris(*port)).is_some_and(|known| !known.is_disjoint(uris));
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

/// The most tenants that are tried for one certificate: each try may cost a verification of a
/// signature or two, about 0.1 ms. More tenants may know one URI, each with its own authority, when
/// peers ask for a server name that selects one of them.
pub(super) const MAX_CLAIMS: usize = 32;

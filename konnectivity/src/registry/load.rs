//! Which definition of each tenant was last in order.
//!
//! ```text
//!   survey(): ids and stamps ──take()──▶ read what changed ──▶ candidates ──unique()──▶ active
//!                                          │ refused: the last good one      │ two claim the same
//!                                          └──────────── told once ──────────┘
//! ```
//!
//! A file that cannot be used leaves its tenant as it was, a file that is gone takes its tenant
//! along, a directory that cannot be listed leaves everything. Makes no TLS settings.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use knp_proto::TenantId;
use settings::{text, watch};

use super::authorities::Authorities;
use super::spec::{CertificateSpec, TenantSpec};
use super::tenants::Tenants;
use super::tls::TlsPorts;
use super::{Loaded, RegistryError, SingleParams, TenantSource, file};

mod conflicts;

/// What is there to be read, without reading it: for each tenant its file and those it names.
/// Or the reason when the directory cannot be listed.
pub(super) type Survey = Result<BTreeMap<TenantId, Stamps>, String>;

type Stamps = Vec<Option<Stamp>>;

/// Identity, size and times of a file, and whether it was written a moment ago: then another write
/// of the same size may carry the same times, for a kernel's clock ticks every 4 ms or more. It is
/// read once more when it is older.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    file: watch::Stamp,
    fresh: bool,
}

/// What is known of the files.
pub(super) struct Known {
    source: TenantSource,
    files: BTreeMap<TenantId, Read>,
    in_force: BTreeMap<TenantId, Arc<TenantSpec>>,
    refused: BTreeMap<TenantId, String>,
    /// Why the directory could not be listed.
    unlisted: Option<String>,
}

/// A file that was read.
struct Read {
    /// The file, then those it names.
    paths: Vec<PathBuf>,
    /// Of `paths`, before they were read.
    stamps: Stamps,
    result: Result<Arc<TenantSpec>, String>,
}

impl Known {
    /// Reads everything for the first time.
    ///
    /// # Errors
    /// The directory cannot be listed, or what a flag names not be used.
    pub(super) fn first(mut source: TenantSource) -> Result<Self, RegistryError> {
        match &mut source {
            TenantSource::Registry(path) => {
                // Sockets are told apart by their paths, so these begin at the root.
                *path = std::path::absolute(&path).unwrap_or_else(|_| path.clone());
                list(path).map_err(|source| RegistryError::Directory {
                    path: path.clone(),
                    source,
                })?;
            }
            TenantSource::Single(params) => {
                read_single(params, &mut Vec::new())?;
            }
        }
        let mut known = Self {
            source,
            files: BTreeMap::new(),
            in_force: BTreeMap::new(),
            refused: BTreeMap::new(),
            unlisted: None,
        };
        let survey = known.survey();
        known.take(survey);
        Ok(known)
    }

    /// Makes the snapshot of what is active.
    pub(super) fn snapshot(&self, ports: &Arc<TlsPorts>, older: Option<&Tenants>) -> Tenants {
        let specs = self.in_force.values().cloned();
        let single = matches!(self.source, TenantSource::Single(_));
        Tenants::new(specs, single, ports.clone(), older)
    }

    /// Looks at what is there.
    pub(super) fn survey(&self) -> Survey {
        let ids = match &self.source {
            TenantSource::Registry(dir) => list(dir).map_err(|error| error.to_string())?,
            TenantSource::Single(params) => BTreeSet::from([params.spec.id.clone()]),
        };
        let look = |id: TenantId| {
            let stamps = match self.files.get(&id) {
                Some(read) => stamps(&read.paths),
                None => stamps(self.file(&id).as_slice()),
            };
            (id, stamps)
        };
        Ok(ids.into_iter().map(look).collect())
    }

    /// Returns the file that defines a tenant, unless flags do.
    fn file(&self, id: &TenantId) -> Option<PathBuf> {
        match &self.source {
            TenantSource::Registry(dir) => Some(dir.join(format!("{id}.yaml"))),
            TenantSource::Single(_) => None,
        }
    }

    /// Whether anything is other than when it was read.
    pub(super) fn differs(&self, survey: &Survey) -> bool {
        match survey {
            Err(reason) => self.unlisted.as_ref() != Some(reason),
            Ok(seen) => {
                self.unlisted.is_some()
                    || seen.len() != self.files.len()
                    || seen.iter().any(|(id, seen)| self.stale(id, seen))
            }
        }
    }

    fn stale(&self, id: &TenantId, seen: &Stamps) -> bool {
        self.files.get(id).is_none_or(|read| read.stamps != *seen)
    }

    /// Makes every file be read again.
    pub(super) fn forget_stamps(&mut self) {
        for read in self.files.values_mut() {
            read.stamps.clear();
        }
    }

    /// Reads what changed and activates what is valid.
    pub(super) fn take(&mut self, survey: Survey) -> Loaded {
        let before = self.in_force.clone();
        let mut refused_anew = 0;
        match survey {
            Err(reason) => {
                if self.unlisted.as_ref() != Some(&reason) {
                    tracing::warn!(%reason, "reading the registry failed, keeping the tenants");
                    refused_anew = 1;
                }
                self.unlisted = Some(reason);
            }
            Ok(seen) => {
                self.unlisted = None;
                self.read_changed(seen);
                refused_anew = self.decide();
            }
        }
        let changed = changed(&before, &self.in_force);
        if changed > 0 {
            tracing::info!(changed, tenants = self.in_force.len(), "registry read");
        }
        Loaded {
            changed,
            refused: refused_anew,
            ..self.totals()
        }
    }

    fn read_changed(&mut self, seen: BTreeMap<TenantId, Stamps>) {
        self.files.retain(|id, _| seen.contains_key(id));
        for (id, seen) in seen {
            if self.stale(&id, &seen) {
                let read = self.read(&id);
                self.files.insert(id, read);
            }
        }
    }

    fn read(&self, id: &TenantId) -> Read {
        let own = self.file(id);
        // Seen before it is read, so that what changes meanwhile is noticed at the next look.
        let mut seen = stamps(own.as_slice());
        let mut named = Vec::new();
        let result = match &self.source {
            TenantSource::Single(params) => read_single(params, &mut named)
                .map_err(|error| telemetry::chain(&error).to_string()),
            TenantSource::Registry(dir) => read_file(id, own.as_ref().unwrap_or(dir), &mut named),
        };
        seen.extend(stamps(&named));
        Read {
            paths: own.into_iter().chain(named).collect(),
            stamps: seen,
            result: result.map(|spec| self.same_or(spec)),
        }
    }

    /// Keeps the active value if it says the same, for what hangs on it.
    fn same_or(&self, spec: TenantSpec) -> Arc<TenantSpec> {
        match self.in_force.get(&spec.id) {
            Some(known) if **known == spec => known.clone(),
            Some(_) | None => Arc::new(spec),
        }
    }

    /// Activates what is valid and claims nothing that is another's. Returns how many files
    /// are refused that were not before, or not for that reason.
    fn decide(&mut self) -> usize {
        let mut candidates = BTreeMap::new();
        let mut refused = BTreeMap::new();
        for (id, read) in &self.files {
            match &read.result {
                Ok(spec) => {
                    candidates.insert(id.clone(), spec.clone());
                }
                Err(reason) => {
                    refused.insert(id.clone(), reason.clone());
                    if let Some(kept) = self.in_force.get(id) {
                        candidates.insert(id.clone(), kept.clone());
                    }
                }
            }
        }
        conflicts::settle(&mut candidates, &self.in_force, |id, reason| {
            let file = self.file(id).unwrap_or_default();
            refused.insert(id.clone(), format!("{}: {reason}", file.display()));
        });
        self.in_force = candidates;
        let mut anew = 0;
        for (tenant, reason) in &refused {
            if self.refused.get(tenant) != Some(reason) {
                let kept = self.in_force.contains_key(tenant);
                tracing::warn!(%tenant, %reason, kept, "tenant definition refused");
                anew += 1;
            }
        }
        self.refused = refused;
        anew
    }

    /// Returns what is refused at present.
    pub(super) fn broken(&self) -> Vec<(TenantId, String)> {
        self.refused.clone().into_iter().collect()
    }

    /// Returns how things stand.
    pub(super) fn totals(&self) -> Loaded {
        Loaded {
            changed: 0,
            tenants: self.in_force.len(),
            refused: 0,
            broken: self.refused.len() + usize::from(self.unlisted.is_some()),
        }
    }
}

fn changed(
    before: &BTreeMap<TenantId, Arc<TenantSpec>>,
    now: &BTreeMap<TenantId, Arc<TenantSpec>>,
) -> usize {
    let removed = before.keys().filter(|id| !now.contains_key(*id)).count();
    let others = now.iter().filter(|(id, spec)| {
        before
            .get(*id)
            .is_none_or(|known| !Arc::ptr_eq(known, spec))
    });
    removed + others.count()
}

fn stamps(paths: &[PathBuf]) -> Stamps {
    let stamp = |path: &PathBuf| {
        let file = watch::Stamp::of(path)?;
        let age = file.modified();
        let age = age.and_then(|at| SystemTime::now().duration_since(at).ok());
        let fresh = age.is_some_and(|age| age < FRESH);
        Some(Stamp { file, fresh })
    };
    paths.iter().map(stamp).collect()
}

/// Returns the tenants of a registry by its files: `<cluster-id>.yaml`, without those whose names
/// begin with a dot.
fn list(dir: &Path) -> std::io::Result<BTreeSet<TenantId>> {
    let mut ids = BTreeSet::new();
    for entry in std::fs::read_dir(dir)? {
        let name = entry?.file_name();
        // A name that is not text is no tenant's either; it is refused by what can be shown of it.
        let shown = name.to_string_lossy();
        if let Some(id) = shown.strip_suffix(".yaml")
            && !shown.starts_with('.')
        {
            ids.insert(TenantId::new(id));
        }
        if ids.len() > MAX_TENANTS {
            return Err(std::io::Error::other(format!(
                "more than {MAX_TENANTS} tenants"
            )));
        }
    }
    Ok(ids)
}

fn read_file(id: &TenantId, path: &Path, named: &mut Vec<PathBuf>) -> Result<TenantSpec, String> {
    if !text::is_label(id.as_str()) {
        return Err(format!(
            "{}: a tenant's name must be a DNS label: at most 63 of a-z, 0-9 and -",
            path.display()
        ));
    }
    file::read(id, path, named).map_err(|error| telemetry::chain(&error).to_string())
}

fn read_single(
    params: &SingleParams,
    named: &mut Vec<PathBuf>,
) -> Result<TenantSpec, RegistryError> {
    let mut certificates = |path: &Option<PathBuf>| {
        let Some(path) = path else {
            return Ok(None);
        };
        named.push(path.clone());
        let authorities = Authorities::read(path).map_err(RegistryError::Authorities)?;
        Ok(Some(CertificateSpec {
            authorities: Arc::new(authorities),
            identities: None,
        }))
    };
    Ok(TenantSpec {
        agent_certificates: certificates(&params.agents_ca)?,
        frontend_certificates: certificates(&params.frontends_ca)?,
        ..params.spec.clone()
    })
}

const FRESH: Duration = Duration::from_millis(100);
/// More files than any server has memory for the agents of.
const MAX_TENANTS: usize = 65_536;

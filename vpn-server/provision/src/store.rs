//! Where state and objects are: two clusters, a cluster and files, or files alone.
//!
//! ```text
//!   read ─▶ State, version ─▶ … ─▶ save: that version or a conflict ─▶ confirm ─▶ apply
//! ```
//!
//! A [`Report`] names what became of each object, never what is in it. Decides nothing.

use std::fmt::Write as _;
use std::io;
use std::path::PathBuf;

use k8s_openapi::api::core::v1::Secret;
use settings::ConfigError;
use tunnel::RouteId;

use super::claims::Claims;
use super::cluster::{Cause, Cluster, Saved};
use super::directory::Directory;
use super::manifest::{self, MANAGED_BY, MANAGER, StateError};
use super::plan;
use super::render::{KEYS, Objects, SecretObject, Side, restart_keys, server_name, state_secret};
use super::state::State;
use crate::config::{Destination, Target, Wanted};

/// Why what is there cannot be read, or what is wanted cannot be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum StoreError {
    #[error("using the kubeconfig {}", path.display())]
    Connect {
        path: PathBuf,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("{what} is not ours: it lacks the label {MANAGED_BY}={MANAGER}")]
    Foreign { what: String },
    #[error("no route id of routeIdRange is free")]
    NoRouteId,
    #[error("Service {namespace}/{name} does not exist: apply the manifests of the servers first")]
    NoService { namespace: String, name: String },
    #[error(transparent)]
    Read(#[from] ConfigError),
    #[error("{what}")]
    Request {
        what: String,
        #[source]
        source: Box<Cause>,
    },
    /// The shoot's API server does not answer, or not as one that has started.
    #[error(transparent)]
    Shoot(Box<Self>),
    #[error("reading what was made before, in {place}")]
    State {
        place: String,
        #[source]
        source: StateError,
    },
    #[error("the route id {id} is {owner}'s: ConfigMap {claim}")]
    Taken {
        id: u32,
        owner: String,
        claim: String,
    },
    #[error("writing {}", path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// What was made before.
#[derive(Default)]
pub(super) struct Current {
    pub(super) state: Option<State>,
    version: Option<String>,
}

/// A place for one side's objects.
enum Place {
    Cluster(Cluster),
    Directory(Directory),
}

impl Place {
    async fn open(target: Target) -> Result<Self, StoreError> {
        Ok(match target {
            Target::Cluster(file) => Self::Cluster(Cluster::new(&file).await?),
            Target::Directory(dir) => Self::Directory(Directory::new(dir)),
        })
    }
}

/// Where everything is.
pub(super) struct Store {
    seed: Place,
    shoot: Place,
    claims: Option<Claims>,
}

impl Store {
    pub(super) async fn open(
        destination: Destination,
        wanted: &Wanted,
    ) -> Result<Self, StoreError> {
        let claims = match destination.claims {
            Some(file) => Some(Claims::new(&Cluster::new(&file).await?, wanted)),
            None => None,
        };
        Ok(Self {
            seed: Place::open(destination.seed).await?,
            shoot: Place::open(destination.shoot).await?,
            claims,
        })
    }

    /// Whether what is written is in effect without being applied by others.
    pub(super) fn applies(&self) -> bool {
        matches!(self.seed, Place::Cluster(_)) && matches!(self.shoot, Place::Cluster(_))
    }

    /// Reads what was made before.
    pub(super) async fn read(&self, wanted: &Wanted) -> Result<Current, StoreError> {
        let object = state_secret(wanted);
        let secret = match &self.seed {
            Place::Cluster(cluster) => cluster.secret(&object.namespace, &object.name).await?,
            Place::Directory(dir) => dir.secret(&object.name)?,
        };
        let Some(secret) = secret else {
            return Ok(Current::default());
        };
        let state = manifest::state(&secret).map_err(|source| StoreError::State {
            place: format!("Secret {}/{}", object.namespace, object.name),
            source,
        })?;
        Ok(Current {
            state: Some(state),
            version: secret.metadata.resource_version,
        })
    }

    /// Returns route ids for the servers that have none.
    pub(super) async fn claim(
        &mut self,
        state: Option<&State>,
        wanted: &Wanted,
        start: u32,
    ) -> Result<Vec<RouteId>, StoreError> {
        let servers = plan::without_route_id(state, wanted);
        match &mut self.claims {
            Some(claims) => claims.claim(&servers, start).await,
            None => Ok(Vec::new()),
        }
    }

    /// Writes the state, unless another run has since it was read.
    pub(super) async fn save(
        &self,
        state: &State,
        wanted: &Wanted,
        before: Current,
        report: &mut Report,
    ) -> Result<Saved, StoreError> {
        let object = manifest::with_state(state_secret(wanted), state);
        let change = match before.state {
            Some(before) if before == *state => Change::Unchanged,
            Some(_) => Change::Changed,
            None => Change::Created,
        };
        if change != Change::Unchanged {
            match &self.seed {
                Place::Cluster(cluster) => {
                    if cluster.save(&object, before.version).await? == Saved::Conflict {
                        return Ok(Saved::Conflict);
                    }
                }
                Place::Directory(dir) => drop(dir.put_secret(&object)?),
            }
        }
        record(report, &object, change);
        Ok(Saved::Stored)
    }

    /// Makes sure that the route ids are these servers', and gives back spare ones.
    pub(super) async fn confirm(&mut self, state: &State) -> Result<(), StoreError> {
        if let Some(claims) = &mut self.claims {
            let servers = state.servers.iter();
            let ids: Vec<u32> = servers.map(|server| server.route_id).collect();
            claims.confirm(&ids).await?;
            claims.give_back(&ids).await?;
        }
        Ok(())
    }

    /// Fails before anything was written when a Service of the manifests is missing.
    pub(super) async fn expect(&self, wanted: &Wanted) -> Result<(), StoreError> {
        if let Place::Cluster(cluster) = &self.seed {
            for server in 0..wanted.servers.len() {
                let name = server_name(server);
                cluster.annotations(&wanted.file.namespace, &name).await?;
            }
        }
        Ok(())
    }

    /// Writes all objects; returns whether any has changed. All of the seed's come first: the API
    /// server of a new shoot starts only once they are there.
    pub(super) async fn apply(
        &self,
        objects: &Objects,
        report: &mut Report,
    ) -> Result<bool, StoreError> {
        let mut changed = self.apply_secrets(Side::Seed, objects, report).await?;
        changed |= self.annotate(objects, report).await?;
        let shoot = self.apply_secrets(Side::Shoot, objects, report).await;
        changed |= shoot.map_err(of_shoot)?;
        Ok(changed)
    }

    async fn apply_secrets(
        &self,
        side: Side,
        objects: &Objects,
        report: &mut Report,
    ) -> Result<bool, StoreError> {
        let mut changed = false;
        for secret in objects.secrets.iter().filter(|one| one.side == side) {
            let (before, change) = match self.place(side) {
                Place::Cluster(cluster) => {
                    let before = cluster.secret(&secret.namespace, &secret.name).await?;
                    (before, cluster.put_secret(secret).await?)
                }
                Place::Directory(dir) => {
                    // A file that cannot be read is written anew.
                    let before = dir.secret(&secret.name).unwrap_or_default();
                    (before, dir.put_secret(secret)?)
                }
            };
            changed |= change != Change::Unchanged;
            record(report, secret, change);
            if let Some(before) = before {
                report_restart(report, secret, &before);
            }
        }
        Ok(changed)
    }

    async fn annotate(&self, objects: &Objects, report: &mut Report) -> Result<bool, StoreError> {
        let mut changed = false;
        for service in &objects.services {
            let change = match &self.seed {
                Place::Cluster(cluster) => cluster.annotate(service).await?,
                Place::Directory(dir) => dir.put_service(service)?,
            };
            changed |= change != Change::Unchanged;
            let (namespace, name) = (&service.namespace, &service.name);
            report.object(Side::Seed.as_str(), "Service", namespace, name, change);
        }
        Ok(changed)
    }

    /// Reports what was written once and is no longer needed.
    pub(super) async fn obsolete(
        &self,
        objects: &Objects,
        wanted: &Wanted,
        report: &mut Report,
    ) -> Result<(), StoreError> {
        let state = state_secret(wanted);
        for side in Side::ALL {
            let own = objects.secrets.iter().filter(|one| one.side == side);
            let mut kept: Vec<&str> = own.map(|one| one.name.as_str()).collect();
            let (namespace, services) = match side {
                Side::Seed => {
                    kept.push(&state.name);
                    (&wanted.file.namespace, objects.services.as_slice())
                }
                Side::Shoot => (&wanted.file.shoot_namespace, [].as_slice()),
            };
            let spare = match self.place(side) {
                Place::Cluster(cluster) => {
                    let spare = cluster.obsolete(namespace, &kept).await;
                    let spare = spare.map_err(|error| match side {
                        Side::Seed => error,
                        Side::Shoot => of_shoot(error),
                    })?;
                    let named = |name| format!("Secret {namespace}/{name}");
                    spare.into_iter().map(named).collect()
                }
                Place::Directory(dir) => {
                    let services = services.iter().map(|one| one.name.as_str());
                    dir.obsolete(kept.into_iter(), services)
                }
            };
            for what in spare {
                let side = side.as_str();
                report.line(&format!("{side} {what}: no longer needed; delete it"));
            }
        }
        Ok(())
    }

    fn place(&self, side: Side) -> &Place {
        match side {
            Side::Seed => &self.seed,
            Side::Shoot => &self.shoot,
        }
    }
}

/// Marks a failure of the shoot's API server that may pass.
fn of_shoot(error: StoreError) -> StoreError {
    if error.is_temporary() {
        StoreError::Shoot(Box::new(error))
    } else {
        error
    }
}

fn record(report: &mut Report, object: &SecretObject, change: Change) {
    let side = object.side.as_str();
    report.object(side, "Secret", &object.namespace, &object.name, change);
}

/// Names the pod that goes on with what it has until it is restarted, and why.
fn report_restart(report: &mut Report, object: &SecretObject, before: &Secret) {
    let keys = restart_keys(object, |file| manifest::file(before, file));
    if let Some(pod) = object.name.strip_suffix(KEYS)
        && !keys.is_empty()
    {
        let (side, namespace) = (object.side.as_str(), &object.namespace);
        let keys = keys.join(", ");
        report.line(&format!(
            "{side} restart pod {namespace}/{pod}: {keys} changed"
        ));
    }
}

telemetry::labels! {
    /// What became of an object, the more notable the greater.
    pub(super) enum Change {
        Unchanged = "unchanged",
        Changed = "changed",
        Created = "created",
    }
}

/// Lines about a run: of each object one, whatever passes did to it, then the rest.
#[derive(Debug, Default)]
pub(super) struct Report {
    objects: Vec<(String, Change)>,
    lines: Vec<String>,
}

impl Report {
    /// Adds an object of the cluster `side`.
    pub(super) fn object(
        &mut self,
        side: &str,
        kind: &str,
        namespace: &str,
        name: &str,
        change: Change,
    ) {
        let what = format!("{side} {kind} {namespace}/{name}");
        match self.objects.iter_mut().find(|(known, _)| *known == what) {
            Some((_, known)) => *known = change.max(*known),
            None => self.objects.push((what, change)),
        }
    }

    /// Adds another line.
    pub(super) fn line(&mut self, text: &str) {
        self.lines.push(text.to_owned());
    }

    /// Returns all lines.
    pub(super) fn into_text(self) -> String {
        let mut text = String::new();
        // Writing to a String does not fail.
        for (what, change) in &self.objects {
            let _ = writeln!(text, "{what}: {}", change.as_str());
        }
        for line in &self.lines {
            let _ = writeln!(text, "{line}");
        }
        text
    }
}

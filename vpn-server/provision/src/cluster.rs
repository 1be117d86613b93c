//! Secrets and annotations in a cluster, by its API server.
//!
//! ```text
//!   state:  get ─▶ version ─▶ replace of that version, or create       two runs: one gets a conflict
//!   others: get ─ same? ─▶ nothing, or server-side apply
//! ```
//!
//! Of a Service only our annotations are applied, so that its other fields keep their owners.
//! A Secret of one of our names that we did not make is left alone and named.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Secret, Service};
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Error};

use super::manifest::{self, MANAGED_BY, MANAGER};
use super::render::{Annotated, SecretObject};
use super::store::{Change, StoreError};

/// By when a connection to an API server must be there.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// How long an API server may be silent.
const SILENCE: Duration = Duration::from_secs(30);

/// Why a request failed, in the API server's words if there are any.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Cause {
    #[error("{} ({})", .0.message, .0.code)]
    Answered(Box<kube::core::Status>),
    #[error(transparent)]
    Other(Error),
}

impl StoreError {
    /// Tells whether the same request may succeed later: the API server cannot be reached, has not
    /// finished starting, or is overloaded.
    pub(super) fn is_temporary(&self) -> bool {
        let Self::Request { source, .. } = self else {
            return false;
        };
        match source.as_ref() {
            Cause::Answered(status) => is_temporary(status.code),
            Cause::Other(error) => matches!(error, Error::HyperError(_) | Error::Service(_)),
        }
    }
}

/// As above, by the status of an answer. 404 is the namespace: a new API server creates its own
/// a moment after it has begun to answer.
fn is_temporary(code: u16) -> bool {
    matches!(code, 404 | 429 | 500..=599)
}

/// Names a failed request.
pub(super) fn failed(what: impl fmt::Display) -> impl FnOnce(Error) -> StoreError {
    move |error| StoreError::Request {
        what: what.to_string(),
        source: Box::new(if let Error::Api(status) = error {
            Cause::Answered(status)
        } else {
            Cause::Other(error)
        }),
    }
}

/// Whether the API server answered with that status.
pub(super) fn answered(error: &Error, code: u16) -> bool {
    matches!(error, Error::Api(status) if status.code == code)
}

/// Whether an object was applied. Otherwise another client wrote between what the API server read for
/// this apply and its own write, and another attempt is due: with force there is no other conflict.
fn is_applied<T>(
    result: Result<T, Error>,
    attempt: usize,
    what: impl fmt::Display,
) -> Result<bool, StoreError> {
    match result {
        Ok(_) => Ok(true),
        Err(error) if answered(&error, 409) && attempt < ATTEMPTS => Ok(false),
        Err(error) => Err(failed(what)(error)),
    }
}

fn apply_params() -> PatchParams {
    PatchParams::apply(MANAGER).force()
}

/// Attempts to apply an object that others write at the same time.
const ATTEMPTS: usize = 8;

/// What became of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Saved {
    /// Another run has written meanwhile.
    Conflict,
    /// It is there.
    Stored,
}

/// A cluster.
#[derive(Clone)]
pub(super) struct Cluster {
    client: Client,
}

impl Cluster {
    /// Reads a kubeconfig. Connects to nothing yet.
    pub(super) async fn new(kubeconfig: &Path) -> Result<Self, StoreError> {
        let wrong = |source: Box<dyn std::error::Error + Send + Sync>| StoreError::Connect {
            path: kubeconfig.to_owned(),
            source,
        };
        let file = Kubeconfig::read_from(kubeconfig).map_err(|error| wrong(error.into()))?;
        let options = KubeConfigOptions::default();
        let settings = kube::Config::from_custom_kubeconfig(file, &options).await;
        let mut settings = settings.map_err(|error| wrong(error.into()))?;
        settings.connect_timeout = Some(CONNECT_LIMIT);
        settings.read_timeout = Some(SILENCE);
        settings.write_timeout = Some(SILENCE);
        settings.reset_reader_on_write = true;
        let client = Client::try_from(settings).map_err(|error| wrong(error.into()))?;
        Ok(Self { client })
    }

    /// Returns the client, for other kinds of objects.
    pub(super) fn client(&self) -> Client {
        self.client.clone()
    }

    /// Returns a Secret of ours, if there is one.
    pub(super) async fn secret(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Secret>, StoreError> {
        let what = format!("Secret {namespace}/{name}");
        let there = self.secrets(namespace).get_opt(name).await;
        let there = there.map_err(failed(format_args!("reading {what}")))?;
        match there {
            Some(secret) if !manifest::is_ours(secret.metadata.labels.as_ref()) => {
                Err(StoreError::Foreign { what })
            }
            there => Ok(there),
        }
    }

    /// Creates a Secret, or replaces the version of it that was read.
    pub(super) async fn save(
        &self,
        object: &SecretObject,
        version: Option<String>,
    ) -> Result<Saved, StoreError> {
        let mut secret = manifest::secret(object);
        let (api, params) = (self.secrets(&object.namespace), PostParams::default());
        let written = if version.is_some() {
            secret.metadata.resource_version = version;
            api.replace(&object.name, &params, &secret).await
        } else {
            api.create(&params, &secret).await
        };
        match written {
            Ok(_) => Ok(Saved::Stored),
            Err(error) if answered(&error, 409) => Ok(Saved::Conflict),
            Err(error) => {
                let what = format_args!("writing Secret {}/{}", object.namespace, object.name);
                Err(failed(what)(error))
            }
        }
    }

    /// Brings a Secret about.
    pub(super) async fn put_secret(&self, object: &SecretObject) -> Result<Change, StoreError> {
        let wanted = manifest::secret(object);
        let (namespace, name) = (&object.namespace, &object.name);
        let (api, patch) = (self.secrets(namespace), Patch::Apply(&wanted));
        for attempt in 1..=ATTEMPTS {
            let change = match self.secret(namespace, name).await? {
                Some(there) if manifest::is_same(&there, &wanted) => break,
                Some(_) => Change::Changed,
                None => Change::Created,
            };
            let applied = api.patch(name, &apply_params(), &patch).await;
            let what = format_args!("applying Secret {namespace}/{name}");
            if is_applied(applied, attempt, what)? {
                return Ok(change);
            }
        }
        Ok(Change::Unchanged)
    }

    /// Sets annotations of a Service that is there.
    pub(super) async fn annotate(&self, object: &Annotated) -> Result<Change, StoreError> {
        let (namespace, name) = (&object.namespace, &object.name);
        let service = manifest::service(object);
        let (api, patch) = (self.services(namespace), Patch::Apply(&service));
        for attempt in 1..=ATTEMPTS {
            let there = self.annotations(namespace, name).await?;
            let mut wanted = object.annotations.iter();
            if wanted.all(|(name, value)| there.get(name) == Some(value)) {
                break;
            }
            let applied = api.patch_metadata(name, &apply_params(), &patch).await;
            let what = format_args!("annotating Service {namespace}/{name}");
            if is_applied(applied, attempt, what)? {
                return Ok(Change::Changed);
            }
        }
        Ok(Change::Unchanged)
    }

    /// Returns names of Secrets of ours in `namespace` that are not among `kept`.
    pub(super) async fn obsolete(
        &self,
        namespace: &str,
        kept: &[&str],
    ) -> Result<Vec<String>, StoreError> {
        let ours = ListParams::default().labels(&format!("{MANAGED_BY}={MANAGER}"));
        let there = self.secrets(namespace).list_metadata(&ours).await;
        let what = format_args!("listing Secrets of {namespace}");
        let names = there.map_err(failed(what))?;
        let names = names.items.into_iter().filter_map(|one| one.metadata.name);
        Ok(names
            .filter(|name| !kept.contains(&name.as_str()))
            .collect())
    }

    /// Returns the annotations of a Service, which must be there.
    pub(super) async fn annotations(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<BTreeMap<String, String>, StoreError> {
        let there = self.services(namespace).get_metadata_opt(name).await;
        let what = format_args!("reading Service {namespace}/{name}");
        let there = there.map_err(failed(what))?;
        let there = there.ok_or_else(|| StoreError::NoService {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        })?;
        Ok(there.metadata.annotations.unwrap_or_default())
    }

    fn secrets(&self, namespace: &str) -> Api<Secret> {
        Api::namespaced(self.client.clone(), namespace)
    }

    fn services(&self, namespace: &str) -> Api<Service> {
        Api::namespaced(self.client.clone(), namespace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starting_api_server_is_temporary() {
        for code in [404, 429, 500, 503] {
            assert!(is_temporary(code), "{code}");
        }
        for code in [400, 401, 403, 409, 422] {
            assert!(!is_temporary(code), "{code}");
        }
    }
}

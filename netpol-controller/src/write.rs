//! Writes of NetworkPolicies: created, put right with foreign labels and annotations kept, deleted.
//!
//! ```text
//!     absent ──POST──▶ created        differs ──GET, PUT with its version──▶ updated
//!                │ 409 exists ──────────▲ │ 409 changed meanwhile: once more
//!     unwanted ──DELETE──▶ gone (404 is gone as well)
//! ```
//!
//! Every request is bounded in time. Decides nothing; what is wanted is `plan`'s.

use std::time::Duration;

use kube::api::{Api, DeleteParams, PostParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind, ObjectMeta};
use kube::{Client, Error};
use serde_json::json;
use tokio::time::timeout;

use crate::existing::{Answer, Fingerprint};
use crate::plan::{self, Policy};
use crate::world::{Kind, ObjectKey};

/// How long one request may take.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);

/// How often an update is tried that others change in between.
const ATTEMPTS: usize = 3;

/// A write that is due.
#[derive(Clone, Debug)]
pub(crate) enum Write {
    /// There is no such policy.
    Create(Policy),
    /// It is there, and not wanted any more.
    Delete(ObjectKey),
    /// It is there, and not as it should be.
    Update(Policy),
}

impl Write {
    /// Returns the policy it is about.
    pub(crate) fn key(&self) -> &ObjectKey {
        match self {
            Self::Create(policy) | Self::Update(policy) => &policy.key,
            Self::Delete(key) => key,
        }
    }

    /// Returns the verb and the reason, as metrics have them.
    pub(crate) const fn labels(&self) -> [&'static str; 2] {
        match self {
            Self::Create(_) => ["create", "absent"],
            Self::Delete(_) => ["delete", "unwanted"],
            Self::Update(_) => ["update", "differs"],
        }
    }
}

/// What became of a write.
#[derive(Debug)]
pub(crate) enum Written {
    /// It is gone.
    Deleted(ObjectKey),
    /// It is there as wanted.
    Stored {
        key: ObjectKey,
        wanted: Fingerprint,
        answer: Answer,
    },
}

/// A write failed.
#[derive(Debug, thiserror::Error)]
#[error("{verb} of NetworkPolicy {key}")]
pub(crate) struct WriteError {
    pub(crate) verb: &'static str,
    pub(crate) key: ObjectKey,
    #[source]
    source: Cause,
}

#[derive(Debug, thiserror::Error)]
enum Cause {
    #[error(transparent)]
    Api(Error),
    #[error("no answer within {REQUEST_LIMIT:?}")]
    Late,
}

impl WriteError {
    /// Returns the status code of the answer; 0 when there was none.
    pub(crate) fn code(&self) -> u16 {
        match &self.source {
            Cause::Api(Error::Api(status)) => status.code,
            Cause::Api(_) | Cause::Late => 0,
        }
    }
}

/// Writes policies by one client.
#[derive(Clone)]
pub(crate) struct Writer {
    client: Client,
    resource: ApiResource,
}

impl Writer {
    pub(crate) fn new(client: Client) -> Self {
        let kind = Kind::NetworkPolicy;
        let gvk = GroupVersionKind::gvk(kind.group(), "v1", kind.name());
        Self {
            client,
            resource: ApiResource::from_gvk_with_plural(&gvk, kind.plural()),
        }
    }

    /// Does one write. Not to be cancelled: a request that is under way may take effect unseen.
    ///
    /// # Errors
    /// Why it failed; it may have taken effect when there was no answer.
    pub(crate) async fn write(&self, write: Write) -> Result<Written, WriteError> {
        let key = write.key().clone();
        let [verb, _] = write.labels();
        let api = Api::namespaced_with(self.client.clone(), &key.namespace, &self.resource);
        let done = match write {
            Write::Create(policy) => create(&api, &policy, &self.resource).await,
            Write::Delete(_) => delete(&api, &key).await,
            Write::Update(policy) => update(&api, &policy, &self.resource).await,
        };
        done.map_err(|source| WriteError { verb, key, source })
    }

    /// Returns a policy as it is; `None` when there is none.
    ///
    /// # Errors
    /// Why it could not be read.
    pub(crate) async fn read(&self, key: &ObjectKey) -> Result<Option<DynamicObject>, Error> {
        let client = self.client.clone();
        let api: Api<DynamicObject> =
            Api::namespaced_with(client, &key.namespace, &self.resource);
        api.get_opt(&key.name).await
    }
}

async fn bounded<T>(request: impl Future<Output = Result<T, Error>>) -> Result<T, Cause> {
    match timeout(REQUEST_LIMIT, request).await {
        Ok(answer) => answer.map_err(Cause::Api),
        Err(_) => Err(Cause::Late),
    }
}

fn is(cause: &Cause, code: u16) -> bool {
    matches!(cause, Cause::Api(Error::Api(status)) if status.code == code)
}

fn stored(policy: &Policy, answer: &DynamicObject) -> Written {
    Written::Stored {
        key: policy.key.clone(),
        wanted: Fingerprint::wanted(policy),
        answer: Answer::new(answer),
    }
}

async fn create(
    api: &Api<DynamicObject>,
    policy: &Policy,
    resource: &ApiResource,
) -> Result<Written, Cause> {
    let fresh = fresh(policy, resource);
    match bounded(api.create(&PostParams::default(), &fresh)).await {
        Ok(answer) => Ok(stored(policy, &answer)),
        // Somebody's without our labels, or one whose event has not come yet.
        Err(cause) if is(&cause, 409) => update(api, policy, resource).await,
        Err(cause) => Err(cause),
    }
}

async fn update(
    api: &Api<DynamicObject>,
    policy: &Policy,
    resource: &ApiResource,
) -> Result<Written, Cause> {
    let mut attempt = 1;
    loop {
        let Some(mut object) = bounded(api.get_opt(&policy.key.name)).await? else {
            let fresh = fresh(policy, resource);
            let answer = bounded(api.create(&PostParams::default(), &fresh)).await?;
            return Ok(stored(policy, &answer));
        };
        claim(&mut object, policy);
        let params = PostParams::default();
        let put = api.replace(&policy.key.name, &params, &object);
        match bounded(put).await {
            Ok(answer) => return Ok(stored(policy, &answer)),
            Err(cause) if is(&cause, 409) && attempt < ATTEMPTS => attempt += 1,
            Err(cause) => return Err(cause),
        }
    }
}

async fn delete(api: &Api<DynamicObject>, key: &ObjectKey) -> Result<Written, Cause> {
    match bounded(api.delete(&key.name, &DeleteParams::default())).await {
        Ok(_) => Ok(Written::Deleted(key.clone())),
        Err(cause) if is(&cause, 404) => Ok(Written::Deleted(key.clone())),
        Err(cause) => Err(cause),
    }
}

fn fresh(policy: &Policy, resource: &ApiResource) -> DynamicObject {
    let mut object = DynamicObject::new(&policy.key.name, resource).within(&policy.key.namespace);
    claim(&mut object, policy);
    object
}

/// Puts what is ours into an object, and leaves what is not.
pub(crate) fn claim(object: &mut DynamicObject, policy: &Policy) {
    let ObjectMeta {
        labels,
        annotations,
        ..
    } = &mut object.metadata;
    let own = policy.labels.iter().map(|(key, value)| (key.clone(), value.clone()));
    labels.get_or_insert_default().extend(own);
    annotations
        .get_or_insert_default()
        .insert(plan::DESCRIPTION.to_owned(), policy.description.clone());
    if object.data.is_object() {
        object.data["spec"] = serde_json::to_value(&policy.spec).unwrap_or_default();
    } else {
        object.data = json!({ "spec": policy.spec });
    }
}

//! Writes NetworkPolicies: creates, updates with foreign labels and annotations kept, deletes.
//!
//! ```text
//!     absent ──POST──▶ created        differs ──GET, PUT with its version──▶ updated
//!                │ 409 exists ──────────▲ │ 409 changed meanwhile: once more
//!     unwanted ──DELETE──▶ gone (404 is gone as well)
//! ```
//!
//! Every request is bounded in time. Decides nothing; what is wanted is `plan`'s.

use std::time::Duration;

use kube::api::{Api, DeleteParams, PostParams, Preconditions};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Client, Error};
use serde_json::json;
use tokio::time::timeout;

use crate::lease::{Leadership, WRITE_LIMIT};
use crate::observed::{Answer, Fingerprint};
use crate::plan::{self, Policy};
use crate::state::{Kind, ObjectKey};

/// How long one request may take: it ends before another replica may lead.
const REQUEST_LIMIT: Duration = WRITE_LIMIT;

/// How often an update is tried that others change in between.
const ATTEMPTS: usize = 3;

#[derive(Clone, Debug)]
pub(crate) enum Write {
    /// There is no such policy.
    Create(Policy),
    /// It exists, in this version, and is no longer wanted.
    Delete(ObjectKey, u64),
    /// It exists and differs.
    Update(Policy),
}

impl Write {
    pub(crate) fn key(&self) -> &ObjectKey {
        match self {
            Self::Create(policy) | Self::Update(policy) => &policy.key,
            Self::Delete(key, _) => key,
        }
    }

    /// Returns the verb and the reason, as metrics have them.
    pub(crate) const fn labels(&self) -> [&'static str; 2] {
        match self {
            Self::Create(_) => ["create", "absent"],
            Self::Delete(..) => ["delete", "unwanted"],
            Self::Update(_) => ["update", "differs"],
        }
    }
}

#[derive(Debug)]
pub(crate) enum Written {
    /// What was there in this version is gone.
    Deleted(ObjectKey, u64),
    /// This was wanted, and is stored so.
    Stored(ObjectKey, Fingerprint, Answer),
}

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
    #[error("this replica no longer leads")]
    NotLeading,
}

impl WriteError {
    /// Returns the status code of the answer; 0 when there was none.
    pub(crate) fn code(&self) -> u16 {
        match &self.source {
            Cause::Api(Error::Api(status)) => status.code,
            Cause::Api(_) | Cause::Late | Cause::NotLeading => 0,
        }
    }
}

#[derive(Clone)]
pub(crate) struct Writer {
    client: Client,
    resource: ApiResource,
    leadership: Leadership,
}

impl Writer {
    pub(crate) fn new(client: Client, leadership: Leadership) -> Self {
        Self {
            client,
            resource: resource(),
            leadership,
        }
    }

    /// Returns whether this process leads: only then anything is written.
    pub(crate) fn leads(&self) -> bool {
        self.leadership.leads()
    }

    /// Does one write. Not to be canceled: a request that is under way may take effect unseen.
    ///
    /// # Errors
    /// Why it failed; it may have taken effect when there was no answer.
    pub(crate) async fn write(&self, write: Write) -> Result<Written, WriteError> {
        let key = write.key().clone();
        let [verb, _] = write.labels();
        let api = Api::namespaced_with(self.client.clone(), &key.namespace, &self.resource);
        let done = match write {
            Write::Create(policy) => self.create(&api, &policy).await,
            Write::Delete(_, version) => self.delete(&api, &key, version).await,
            Write::Update(policy) => self.update(&api, &policy).await,
        };
        done.map_err(|source| WriteError { verb, key, source })
    }

    async fn create(&self, api: &Api<DynamicObject>, policy: &Policy) -> Result<Written, Cause> {
        let fresh = fresh(policy, &self.resource);
        let params = PostParams::default();
        match self.bounded(api.create(&params, &fresh)).await {
            Ok(answer) => Ok(stored(policy, &answer)),
            // A policy without our labels, or one whose watch event is outstanding.
            Err(cause) if is(&cause, 409) => self.update(api, policy).await,
            Err(cause) => Err(cause),
        }
    }

    async fn update(&self, api: &Api<DynamicObject>, policy: &Policy) -> Result<Written, Cause> {
        let params = PostParams::default();
        let mut attempt = 1;
        loop {
            let there = self.bounded(api.get_opt(&policy.key.name)).await?;
            let Some(mut object) = there else {
                let fresh = fresh(policy, &self.resource);
                let answer = self.bounded(api.create(&params, &fresh)).await?;
                return Ok(stored(policy, &answer));
            };
            claim(&mut object, policy);
            let put = api.replace(&policy.key.name, &params, &object);
            match self.bounded(put).await {
                Ok(answer) => return Ok(stored(policy, &answer)),
                Err(cause) if is(&cause, 409) && attempt < ATTEMPTS => attempt += 1,
                Err(cause) => return Err(cause),
            }
        }
    }

    /// Deletes what was seen and nothing that came after it: another Service may own that.
    async fn delete(
        &self,
        api: &Api<DynamicObject>,
        key: &ObjectKey,
        version: u64,
    ) -> Result<Written, Cause> {
        let preconditions = Preconditions {
            resource_version: Some(version.to_string()),
            uid: None,
        };
        let params = DeleteParams {
            preconditions: (version != 0).then_some(preconditions),
            ..DeleteParams::default()
        };
        match self.bounded(api.delete(&key.name, &params)).await {
            Ok(_) => Ok(Written::Deleted(key.clone(), version)),
            Err(cause) if is(&cause, 404) => Ok(Written::Deleted(key.clone(), version)),
            Err(cause) => Err(cause),
        }
    }

    /// Begins a request only while this process leads, and ends it in time.
    async fn bounded<T>(
        &self,
        request: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Cause> {
        if !self.leads() {
            return Err(Cause::NotLeading);
        }
        match timeout(REQUEST_LIMIT, request).await {
            Ok(answer) => answer.map_err(Cause::Api),
            Err(_) => Err(Cause::Late),
        }
    }
}

/// Returns how NetworkPolicies are asked for.
pub(crate) fn resource() -> ApiResource {
    let kind = Kind::NetworkPolicy;
    let gvk = GroupVersionKind::gvk(kind.group(), "v1", kind.name());
    ApiResource::from_gvk_with_plural(&gvk, kind.plural())
}

fn is(cause: &Cause, code: u16) -> bool {
    matches!(cause, Cause::Api(Error::Api(status)) if status.code == code)
}

fn stored(policy: &Policy, answer: &DynamicObject) -> Written {
    let wanted = Fingerprint::wanted(policy);
    Written::Stored(policy.key.clone(), wanted, Answer::new(answer))
}

fn fresh(policy: &Policy, resource: &ApiResource) -> DynamicObject {
    let mut object = DynamicObject::new(&policy.key.name, resource).within(&policy.key.namespace);
    claim(&mut object, policy);
    object
}

/// Sets our labels, annotation and specification in an object, and keeps foreign ones.
pub(crate) fn claim(object: &mut DynamicObject, policy: &Policy) {
    let meta = &mut object.metadata;
    let labels = meta.labels.get_or_insert_default();
    labels.extend(policy.labels.clone());
    let annotations = meta.annotations.get_or_insert_default();
    annotations.insert(plan::DESCRIPTION.to_owned(), policy.description.clone());
    if object.data.is_object() {
        object.data["spec"] = policy.spec.clone();
    } else {
        object.data = json!({ "spec": policy.spec });
    }
}

//! `--dry-run`: what would be written, as a diff that a person can review. Writes nothing.
//!
//! ```text
//!     list every kind once ─▶ plan ─▶ compare ─▶ read what differs ─▶ diff of YAML
//! ```

use std::fmt::Write as _;

use kube::api::{Api, ListParams};
use kube::core::{ApiResource, DynamicObject};
use kube::Client;
use serde_json::Value;
use similar::{ChangeTag, TextDiff};

use crate::config::Config;
use crate::controller::{StartError, client, needs};
use crate::existing::Existing;
use crate::plan::ApiServer;
use crate::publish::Publisher;
use crate::sync::Sync;
use crate::watch::served;
use crate::world::{Kind, ObjectKey, World};
use crate::write::{Write, Writer, claim};

/// Objects that are asked for at a time.
const PAGE: u32 = 500;

/// Why there is no diff.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DryRunError {
    /// The API server did not answer as it should.
    #[error("reading {what}")]
    Api {
        /// What was asked for.
        what: String,
        /// Why there is none.
        #[source]
        source: Box<kube::Error>,
    },
    /// It is not known how to reach the API server.
    #[error(transparent)]
    Start(#[from] StartError),
}

/// Returns the writes that a controller with this configuration would begin with, as text.
///
/// # Errors
/// Why the cluster could not be read.
pub async fn dry_run(config: &Config) -> Result<String, DryRunError> {
    let (client, _) = client(config).await?;
    let (world, existing) = read(&client, config).await?;
    let mut publisher = config.routing.as_ref().map(Publisher::detached);
    let mut problems = Vec::new();
    if let Some(publisher) = &mut publisher {
        let groups = crate::routes::all_groups(&world);
        let outcome = publisher.translate(&world, groups);
        problems.extend(outcome.problems.into_iter().flat_map(|(_, own)| own));
    }
    let routed = |key: &ObjectKey| {
        let publisher = publisher.as_ref();
        publisher.map_or_else(Vec::new, |own| own.routed(key))
    };
    let mut sync = Sync::new(config);
    let api_server = ApiServer::of(&world);
    let (writes, found) = sync.review(&world, &existing, routed, &api_server);
    problems.extend(found);
    let writer = Writer::new(client);
    let mut text = String::new();
    let mut counts = [0_usize; 3];
    for write in &writes {
        counts[match write {
            Write::Create(_) => 0,
            Write::Update(_) => 1,
            Write::Delete(_) => 2,
        }] += 1;
        let before = writer
            .read(write.key())
            .await
            .map_err(|source| api(format!("NetworkPolicy {}", write.key()), source))?;
        text += &difference(write, before);
    }
    for problem in &problems {
        let (object, reason, message) = (&problem.object, problem.reason, &problem.message);
        let _ = writeln!(text, "# {object}: {reason}: {message}");
    }
    if let Some(publisher) = &publisher {
        for (name, own) in publisher.summary() {
            let (routes, clusters) = (own.routes, own.clusters);
            let _ = writeln!(text, "# gateway {name}: {routes} routes, {clusters} clusters");
        }
    }
    let [create, update, delete] = counts;
    let _ = writeln!(
        text,
        "# {create} to create, {update} to update, {delete} to delete; nothing was written"
    );
    Ok(text)
}

async fn read(client: &Client, config: &Config) -> Result<(World, Existing), DryRunError> {
    let what = || "what the API server serves".to_owned();
    let kinds = served(client, needs(config))
        .await
        .map_err(|source| api(what(), source))?;
    let (mut world, mut existing) = (World::default(), Existing::default());
    for (kind, resource) in kinds {
        for object in list(client, kind, &resource).await? {
            let key = ObjectKey::of(&object);
            if kind == Kind::NetworkPolicy {
                existing.seen(key, &object);
            } else if let Err(error) = world.apply(kind, object) {
                tracing::warn!(error = %telemetry::chain(&error), "an object is left out");
            }
        }
        world.served.insert(kind);
    }
    Ok((world, existing))
}

async fn list(
    client: &Client,
    kind: Kind,
    resource: &ApiResource,
) -> Result<Vec<DynamicObject>, DryRunError> {
    let api_of: Api<DynamicObject> = Api::all_with(client.clone(), resource);
    let mut params = ListParams::default().limit(PAGE);
    let mut all = Vec::new();
    loop {
        let page = api_of
            .list(&params)
            .await
            .map_err(|source| api(kind.resource(), source))?;
        all.extend(page.items);
        match page.metadata.continue_.filter(|more| !more.is_empty()) {
            Some(more) => params = params.continue_token(&more),
            None => return Ok(all),
        }
    }
}

fn api(what: String, source: kube::Error) -> DryRunError {
    DryRunError::Api {
        what,
        source: Box::new(source),
    }
}

/// Returns one write as a diff: a line that names it, then removed and added lines.
fn difference(write: &Write, before: Option<DynamicObject>) -> String {
    let old = before.as_ref().map(yaml).unwrap_or_default();
    let new = match write {
        Write::Delete(_) => String::new(),
        Write::Create(policy) | Write::Update(policy) => {
            let bare = DynamicObject {
                types: None,
                metadata: kube::core::ObjectMeta {
                    name: Some(policy.key.name.to_string()),
                    namespace: Some(policy.key.namespace.to_string()),
                    ..kube::core::ObjectMeta::default()
                },
                data: Value::Null,
            };
            let mut object = before.unwrap_or(bare);
            claim(&mut object, policy);
            yaml(&object)
        }
    };
    let [verb, _] = write.labels();
    let mut text = format!("# {verb} NetworkPolicy {}\n", write.key());
    for group in TextDiff::from_lines(&old, &new).grouped_ops(3) {
        for operation in group {
            for change in TextDiff::from_lines(&old, &new).iter_changes(&operation) {
                let sign = match change.tag() {
                    ChangeTag::Delete => '-',
                    ChangeTag::Equal => ' ',
                    ChangeTag::Insert => '+',
                };
                let _ = write!(text, "{sign} {change}");
            }
        }
    }
    text
}

/// What of a policy a person reviews: its name, labels, annotations and specification.
fn yaml(object: &DynamicObject) -> String {
    let value = serde_json::json!({
        "metadata": {
            "name": object.metadata.name,
            "namespace": object.metadata.namespace,
            "labels": object.metadata.labels,
            "annotations": object.metadata.annotations,
        },
        "spec": object.data.get("spec"),
    });
    settings::effective_yaml(&value).unwrap_or_default()
}

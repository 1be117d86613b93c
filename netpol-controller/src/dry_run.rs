//! `--dry-run`: what would be written, as a diff that a person can review. Writes nothing.
//!
//! ```text
//!     list every kind once ─▶ plan ─▶ compare ─▶ read what differs ─▶ diff of YAML
//! ```

use std::fmt::Write as _;

use kube::Client;
use kube::api::{Api, ListParams};
use kube::core::{ApiResource, DynamicObject};
use serde_json::Value;
use similar::TextDiff;

use crate::config::{Config, Environment};
use crate::controller::{StartError, client};
use crate::observed::ObservedPolicies;
use crate::plan::{ApiServer, HostName};
use crate::publish::Publisher;
use crate::resolve;
use crate::state::{ClusterState, Kind, ObjectKey};
use crate::sync::{PlanInputs, PolicySync};
use crate::watch::{Received, TOO_DEEP, served};
use crate::write::{self, Write, claim};

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
pub async fn dry_run(config: &Config, environment: &Environment) -> Result<String, DryRunError> {
    let (client, url) = client(config).await?;
    let (state, observed) = read(&client, config).await?;
    // Without its name resolved, the policy toward the API server is left as it is.
    let host = match resolve::name(&url, environment.api_server.as_ref()) {
        Some((name, port)) => resolve::once(&name, port).await,
        None => Ok(HostName::None),
    };
    let api_server = ApiServer {
        host: host.unwrap_or(HostName::Unresolved),
        ..ApiServer::of(&state)
    };
    let mut publisher = Publisher::new(config.routing.as_ref(), None);
    let changed = publisher.translate(&state, crate::routes::all_groups(&state));
    let groups = changed.problems.iter();
    let mut problems: Vec<_> = groups.flat_map(|own| publisher.problems(own)).collect();
    let routed = |key: &ObjectKey| publisher.routed(key);
    let mut sync = PolicySync::new(config);
    let known = PlanInputs {
        state: &state,
        observed: &observed,
        api_server: &api_server,
    };
    let (writes, found) = sync.review(&known, routed);
    problems.extend(found);
    let resource = write::resource();
    let mut text = String::new();
    let mut counts = [0_usize; 3];
    for write in &writes {
        counts[match write {
            Write::Create(_) => 0,
            Write::Update(_) => 1,
            Write::Delete(..) => 2,
        }] += 1;
        let ObjectKey { namespace, name } = write.key();
        let policies = Api::namespaced_with(client.clone(), namespace, &resource);
        let before = policies.get_opt(name).await;
        let before = before.map_err(|source| api(format!("NetworkPolicy {}", write.key()), source));
        text += &difference(write, before?);
    }
    for problem in &problems {
        let (object, message) = (&problem.object, &problem.message);
        let reason = problem.reason.as_str();
        let _ = writeln!(text, "# {object}: {reason}: {message}");
    }
    for (name, own) in publisher.summary() {
        let (routes, clusters) = (own.routes, own.clusters);
        let _ = writeln!(
            text,
            "# gateway {name}: {routes} routes, {clusters} clusters"
        );
    }
    let [create, update, delete] = counts;
    let _ = writeln!(
        text,
        "# {create} to create, {update} to update, {delete} to delete; nothing was written"
    );
    Ok(text)
}

async fn read(
    client: &Client,
    config: &Config,
) -> Result<(ClusterState, ObservedPolicies), DryRunError> {
    let what = || "what the API server serves".to_owned();
    let kinds = served(client, config)
        .await
        .map_err(|source| api(what(), source))?;
    let (mut state, mut observed) = (ClusterState::default(), ObservedPolicies::default());
    for (kind, resource) in kinds {
        for Received { object, is_cut } in list(client, kind, &resource).await? {
            let key = ObjectKey::of(&object);
            if is_cut {
                tracing::warn!(kind = kind.name(), %key, error = TOO_DEEP, "object skipped");
                state.reject(kind, &key);
                continue;
            }
            if kind == Kind::NetworkPolicy {
                observed.seen(key, &object);
            } else if let Err(error) = state.apply(kind, object, |_| ()) {
                tracing::warn!(error = %telemetry::chain(&error), "object skipped");
            }
        }
        state.served.insert(kind);
    }
    Ok((state, observed))
}

async fn list(
    client: &Client,
    kind: Kind,
    resource: &ApiResource,
) -> Result<Vec<Received>, DryRunError> {
    let api_of: Api<Received> = Api::all_with(client.clone(), resource);
    let mut params = ListParams::default().limit(PAGE);
    let mut all = Vec::new();
    loop {
        let page = api_of
            .list(&params)
            .await
            .map_err(|source| api(kind.as_str().to_owned(), source))?;
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
        Write::Delete(..) => String::new(),
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
    let diff = TextDiff::from_lines(&old, &new);
    let (key, diff) = (write.key(), diff.unified_diff());
    format!("# {verb} NetworkPolicy {key}\n{diff}")
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

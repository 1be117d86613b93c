//! Objects as the API server and kubectl take them.
//!
//! Writes nothing anywhere.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::core::ObjectMeta;
use serde_json::{Value, json};

use super::render::{Annotated, STATE_FILE, SecretObject};
use super::state::State;

/// Who manages fields and objects: the name of both a label's value and a field manager.
pub(super) const MANAGER: &str = "vpn-provision";

/// The label that says so.
pub(super) const MANAGED_BY: &str = "app.kubernetes.io/managed-by";

/// Why a state cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum StateError {
    #[error("the state in it")]
    Content(#[source] serde_json::Error),
    #[error("it has no {STATE_FILE}")]
    Missing,
}

/// Returns the Secret as it is to be.
pub(super) fn secret(object: &SecretObject) -> Secret {
    let data = object.data.iter();
    let data = data.map(|(file, text)| (file.clone(), ByteString(text.clone().into_bytes())));
    let labels = BTreeMap::from([(MANAGED_BY.to_owned(), MANAGER.to_owned())]);
    Secret {
        metadata: ObjectMeta {
            name: Some(object.name.clone()),
            namespace: Some(object.namespace.clone()),
            labels: Some(labels),
            ..ObjectMeta::default()
        },
        data: Some(data.collect()),
        type_: Some("Opaque".to_owned()),
        ..Secret::default()
    }
}

/// Whether `there` is one of ours; others are left alone.
pub(super) fn is_ours(labels: Option<&BTreeMap<String, String>>) -> bool {
    labels.is_some_and(|labels| labels.get(MANAGED_BY).is_some_and(|by| by == MANAGER))
}

/// Whether `there` says what `wanted` does.
pub(super) fn is_same(there: &Secret, wanted: &Secret) -> bool {
    there.data.as_ref().is_some_and(|data| !data.is_empty()) && there.data == wanted.data
}

/// Returns the state as the content of its Secret.
pub(super) fn with_state(mut object: SecretObject, state: &State) -> SecretObject {
    // A struct of texts and numbers has a JSON form.
    let text = serde_json::to_string(state).unwrap_or_default();
    object.data.insert(STATE_FILE.to_owned(), text);
    object
}

/// Reads the state out of its Secret.
pub(super) fn state(secret: &Secret) -> Result<State, StateError> {
    let data = secret.data.as_ref().and_then(|data| data.get(STATE_FILE));
    let data = data.ok_or(StateError::Missing)?;
    serde_json::from_slice(&data.0).map_err(StateError::Content)
}

/// Returns a file of a Secret.
pub(super) fn file(secret: &Secret, name: &str) -> Option<String> {
    let file = secret.data.as_ref()?.get(name)?;
    String::from_utf8(file.0.clone()).ok()
}

/// Returns the annotations as something to apply to a Service that is there.
pub(super) fn service(object: &Annotated) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": object.name,
            "namespace": object.namespace,
            "annotations": object.annotations,
        },
    })
}

/// Returns `value` as YAML with a closing newline.
///
/// # Panics
/// Never: every JSON value has a YAML form.
pub(super) fn to_yaml(value: &Value) -> String {
    settings::yaml::to_string(value).expect("every JSON value has a YAML form")
}

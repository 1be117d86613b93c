//! What every object has: where it is, what it is called, and how it is named in messages.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use kube::core::{DynamicObject, ObjectMeta};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::Kind;

/// Labels or annotations.
pub type Labels = BTreeMap<String, String>;

/// Returns whether labels have all those of a selector.
pub fn has_labels(labels: &Labels, selector: &Labels) -> bool {
    selector
        .iter()
        .all(|(key, value)| labels.get(key) == Some(value))
}

/// Namespace and name of an object; the namespace is empty for what has none.
#[derive(Clone, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ObjectKey {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
}

impl ObjectKey {
    /// Makes a key.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    /// Returns the key of an object.
    pub fn of(object: &DynamicObject) -> Self {
        let text = |value: &Option<String>| value.as_deref().unwrap_or_default().into();
        Self {
            namespace: text(&object.metadata.namespace),
            name: text(&object.metadata.name),
        }
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.namespace.is_empty() {
            write!(f, "{}/", self.namespace)?;
        }
        f.write_str(&self.name)
    }
}

/// An object that something was found out about: what an Event is attached to.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct ObjectRef {
    /// Its kind.
    pub kind: Kind,
    /// Where it is.
    pub key: ObjectKey,
}

impl ObjectRef {
    /// Refers to the object of this kind and key.
    pub fn new(kind: Kind, key: &ObjectKey) -> Self {
        let key = key.clone();
        Self { kind, key }
    }
}

impl fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind.name(), self.key)
    }
}

/// An object cannot be understood.
#[derive(Debug, thiserror::Error)]
#[error("invalid {kind} {key}")]
pub struct ParseError {
    pub(super) kind: &'static str,
    pub(super) key: ObjectKey,
    #[source]
    pub(super) source: serde_json::Error,
}

/// What is read from an object of the API server.
pub(super) trait Parse: Sized {
    fn parse(kind: Kind, object: DynamicObject) -> Result<Self, serde_json::Error>;
}

/// A specification, read like one, with what is kept of the metadata around it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Object<T> {
    /// Its unique id, for Events.
    pub uid: String,
    /// When it was created, seconds since 1970.
    pub created: i64,
    /// Annotations that mean something to the controller.
    pub annotations: Labels,
    /// The namespace that owns it: Gardener's filters vanish with their shoot's.
    pub owner: Option<Arc<str>>,
    spec: T,
}

impl<T> Deref for Object<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.spec
    }
}

impl<T: DeserializeOwned + Default> Parse for Object<T> {
    fn parse(_: Kind, mut object: DynamicObject) -> Result<Self, serde_json::Error> {
        let mut owners = object.metadata.owner_references.iter().flatten();
        let owner = owners.find(|owner| owner.kind == "Namespace");
        Ok(Self {
            owner: owner.map(|namespace| namespace.name.as_str().into()),
            spec: part(&mut object, "/spec")?,
            created: created(&object.metadata),
            annotations: annotations(&mut object.metadata),
            uid: object.metadata.uid.unwrap_or_default(),
        })
    }
}

/// Prefixes of the annotations that mean something to the controller.
const ANNOTATIONS: [&str; 3] = [
    "networking.resources.gardener.cloud/",
    "rhizome.gardener.cloud/",
    "networking.istio.io/",
];

/// Takes the annotations that mean something to the controller.
pub(super) fn annotations(meta: &mut ObjectMeta) -> Labels {
    let mut annotations = meta.annotations.take().unwrap_or_default();
    annotations.retain(|key, _| ANNOTATIONS.iter().any(|prefix| key.starts_with(prefix)));
    annotations
}

/// Reads the part of an object at a JSON pointer, an empty one when it is absent.
pub(super) fn part<T: DeserializeOwned + Default>(
    object: &mut DynamicObject,
    pointer: &str,
) -> Result<T, serde_json::Error> {
    match object.data.pointer_mut(pointer).map(Value::take) {
        None | Some(Value::Null) => Ok(T::default()),
        Some(value) => serde_json::from_value(value),
    }
}

/// Returns when the object was created, seconds since 1970; the distant past when absent.
pub(super) fn created(meta: &ObjectMeta) -> i64 {
    meta.creation_timestamp
        .as_ref()
        .map_or(0, |time| time.0.as_second())
}

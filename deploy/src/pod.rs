//! A pod of a workload, as its controller would make it.

use anyhow::{Context, Result};
use serde_json::Value;

use crate::container::Container;
use crate::objects::Objects;

#[derive(Clone, Debug)]
pub struct Pod {
    pub name: String,
    pub namespace: String,
    pub spec: Value,
    pub metadata: Value,
}

impl Pod {
    /// Makes the pod `name` of a workload (`Deployment`, `DaemonSet` or `StatefulSet`).
    pub fn of(objects: &Objects, kind: &str, workload: &str, name: &str) -> Result<Self> {
        let object = objects.get(kind, workload)?;
        let namespace = object["metadata"]["namespace"].as_str();
        let namespace = namespace.with_context(|| format!("{kind} {workload} has no namespace"))?;
        Ok(Self {
            name: name.to_owned(),
            namespace: namespace.to_owned(),
            spec: object["spec"]["template"]["spec"].clone(),
            metadata: object["spec"]["template"]["metadata"].clone(),
        })
    }

    /// Returns its containers, those that only begin it first.
    pub fn containers(&self) -> impl Iterator<Item = Container<'_>> {
        let of = |key: &str| self.spec[key].as_array().into_iter().flatten();
        let both = of("initContainers").chain(of("containers"));
        both.map(|spec| Container::new(self, spec))
    }

    pub fn container(&self, name: &str) -> Result<Container<'_>> {
        let found = self.containers().find(|own| own.name() == name);
        found.with_context(|| format!("pod {} has no container {name}", self.name))
    }

    pub fn has_token(&self, objects: &Objects) -> bool {
        let asked = |object: &Value| object["automountServiceAccountToken"].as_bool();
        let account = self.spec["serviceAccountName"].as_str();
        let account = account.unwrap_or("default");
        let of_account = || objects.get("ServiceAccount", account).ok().and_then(asked);
        asked(&self.spec).or_else(of_account).unwrap_or(true)
    }

    pub fn fs_group(&self) -> Option<u64> {
        self.spec["securityContext"]["fsGroup"].as_u64()
    }
}

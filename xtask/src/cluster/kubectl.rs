//! kubectl, as an operator outside of both clusters runs it.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use testkit::{command, wait};

use super::control::Cluster;
use super::machine::Machine;

/// An operator of one cluster, at the router.
#[derive(Clone, Debug)]
pub(crate) struct Kubectl {
    at: Machine,
    kubeconfig: PathBuf,
    cache: PathBuf,
    /// The server's minor version.
    minor: u32,
}

impl Kubectl {
    pub(crate) fn new(at: &Machine, cluster: &Cluster, minor: u32) -> Self {
        Self {
            at: at.clone(),
            kubeconfig: cluster.kubeconfig("admin"),
            cache: cluster.directory.join("kubectl"),
            minor,
        }
    }

    /// Prepares `kubectl` with some words.
    pub(crate) fn command(&self, words: &[&str]) -> Result<Command> {
        self.command_for(60, words)
    }

    /// As [`Kubectl::command`], for some seconds at most.
    pub(crate) fn command_for(&self, seconds: u32, words: &[&str]) -> Result<Command> {
        let mut kubectl = self.at.command("timeout")?;
        kubectl.args([&seconds.to_string(), "kubectl"]);
        kubectl.arg("--kubeconfig").arg(&self.kubeconfig);
        kubectl.arg("--cache-dir").arg(&self.cache);
        kubectl.args(words);
        Ok(kubectl)
    }

    /// Runs `kubectl` and returns what it prints.
    pub(crate) fn run(&self, words: &[&str]) -> Result<String> {
        command::run(&mut self.command(words)?)
    }

    /// Applies objects server-side, without what the server is too old for, or as its older kind; returns what
    /// that is.
    pub(crate) fn apply(&self, objects: impl IntoIterator<Item = Value>) -> Result<Vec<String>> {
        let mut left_out = Vec::new();
        let known = |object| known(object, self.minor, &mut left_out);
        let items: Vec<Value> = objects.into_iter().filter_map(known).collect();
        // Servers of old cannot apply these by themselves.
        let (by_client, by_server): (Vec<Value>, Vec<Value>) = items
            .into_iter()
            .partition(|item| item["kind"] == "APIService");
        for (items, flag) in [
            (by_server, "--server-side"),
            (by_client, "--server-side=false"),
        ] {
            if items.is_empty() {
                continue;
            }
            let list = json!({ "apiVersion": "v1", "kind": "List", "items": items });
            let file = self.kubeconfig.with_extension("objects.json");
            fs::write(&file, list.to_string()).context("writing objects")?;
            let file = file.display().to_string();
            self.run(&["apply", flag, "--validate=false", "--filename", &file])?;
        }
        Ok(left_out)
    }

    /// Merges `change` into an object, which `words` name with its namespace (RFC 7386).
    pub(crate) fn patch(&self, words: &[&str], change: &Value) -> Result<()> {
        let change = change.to_string();
        let merge = ["--type=merge", "--patch", &change];
        self.run(&[&["patch"], words, &merge].concat()).map(|_| ())
    }

    /// Returns an object, or a list, as JSON.
    pub(crate) fn get(&self, words: &[&str]) -> Result<Value> {
        let words = [&["get", "--output", "json"], words].concat();
        serde_json::from_str(&self.run(&words)?).context("reading what kubectl prints")
    }

    /// Waits until a workload has as many ready pods as it wants, of its last revision.
    pub(crate) fn rolled_out(
        &self,
        namespace: &str,
        workload: &str,
        limit: Duration,
    ) -> Result<()> {
        let timeout = format!("--timeout={}s", limit.as_secs());
        let status = [
            "--namespace",
            namespace,
            "rollout",
            "status",
            workload,
            &timeout,
        ];
        let seconds = u32::try_from(limit.as_secs())?.saturating_add(5);
        let waited = command::run(&mut self.command_for(seconds, &status)?);
        if let Err(error) = waited {
            let pods = self.run(&["--namespace", namespace, "get", "pods", "--output", "wide"]);
            let events = self.run(&[
                "--namespace",
                namespace,
                "get",
                "events",
                "--sort-by=.lastTimestamp",
            ]);
            let events = events.unwrap_or_default();
            let last: Vec<&str> = events.lines().rev().take(15).collect();
            bail!(
                "{error:#}\n{}\n{}",
                pods.unwrap_or_default(),
                last.join("\n")
            );
        }
        Ok(())
    }

    /// Waits until the API server answers that it is ready.
    pub(crate) fn wait_ready(&self, limit: Duration) -> Result<()> {
        wait::until_ok("an API server", limit, || {
            let ready = self.run(&["get", "--raw", "/readyz", "--request-timeout=2s"]);
            ready
                .map(|_| ())
                .inspect_err(|_| wait::pause(Duration::from_millis(300)))
        })
    }
}

/// Returns an object without what servers of a minor version do not know, none if that is all of it, and
/// adds what that is.
fn known(mut object: Value, minor: u32, left_out: &mut Vec<String>) -> Option<Value> {
    let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    let (version, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
    let what = format!("{kind} {}", text(&object["metadata"]["name"]));
    let too_new = TOO_NEW.iter().filter(|rule| minor < rule.since);
    for rule in too_new.filter(|rule| rule.kind == kind && rule.version == version) {
        let (parent, field) = match rule.what {
            What::Field(parent, field) => (parent, field),
            What::Version(older) => {
                object["apiVersion"] = json!(older);
                left_out.push(format!("{what}: {version}"));
                continue;
            }
            What::Kind => {
                left_out.push(what);
                return None;
            }
        };
        let fields = object.pointer_mut(parent).and_then(Value::as_object_mut);
        if fields.is_some_and(|fields| fields.remove(field).is_some()) {
            left_out.push(format!("{what}: {parent}/{field}"));
        }
    }
    Some(object)
}

/// What a minor version brought.
struct TooNew {
    version: &'static str,
    kind: &'static str,
    what: What,
    since: u32,
}

enum What {
    Kind,
    /// A version of the kind, by a name that is the same but for its last part.
    Version(&'static str),
    /// A field, after its parent.
    Field(&'static str, &'static str),
}

const fn too_new(version: &'static str, kind: &'static str, what: What, since: u32) -> TooNew {
    TooNew {
        version,
        kind,
        what,
        since,
    }
}

/// What of the shipped manifests older servers than these do not know.
const TOO_NEW: [TooNew; 5] = [
    too_new(
        "policy/v1",
        "PodDisruptionBudget",
        What::Field("/spec", "unhealthyPodEvictionPolicy"),
        26,
    ),
    too_new(
        "policy/v1",
        "PodDisruptionBudget",
        What::Version("policy/v1beta1"),
        21,
    ),
    too_new("autoscaling/v2", "HorizontalPodAutoscaler", What::Kind, 23),
    too_new(
        "v1",
        "Service",
        What::Field("/spec", "trafficDistribution"),
        30,
    ),
    too_new(
        "apps/v1",
        "DaemonSet",
        What::Field("/spec/updateStrategy", "rollingUpdate"),
        22,
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_too_new_are_left_out_and_said() {
        let scaler = json!({
            "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": { "name": "a" },
        });
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "name": "b" },
            "spec": { "trafficDistribution": "PreferClose", "type": "ClusterIP" },
        });
        let budget = json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": { "name": "c" },
            "spec": { "maxUnavailable": 1, "unhealthyPodEvictionPolicy": "AlwaysAllow" },
        });
        let mut said = Vec::new();
        assert_eq!(known(scaler.clone(), 20, &mut said), None);
        let left = known(service.clone(), 20, &mut said).unwrap();
        assert_eq!(left["spec"], json!({ "type": "ClusterIP" }));
        let left = known(budget.clone(), 20, &mut said).unwrap();
        assert_eq!(left["apiVersion"], "policy/v1beta1");
        assert_eq!(left["spec"], json!({ "maxUnavailable": 1 }));
        assert_eq!(
            said,
            [
                "HorizontalPodAutoscaler a",
                "Service b: /spec/trafficDistribution",
                "PodDisruptionBudget c: /spec/unhealthyPodEvictionPolicy",
                "PodDisruptionBudget c: policy/v1",
            ]
        );
        said.clear();
        for object in [scaler, service, budget] {
            assert_eq!(known(object.clone(), 34, &mut said), Some(object));
        }
        assert_eq!(said, [""; 0]);
    }
}

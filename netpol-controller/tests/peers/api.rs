//! Objects of the API server, as a test sees and changes them.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::http::{Connection, Response, Target};
use testkit::wait;

use crate::child::LIMIT;

/// The prefix of Gardener's labels and annotations.
pub(crate) const P: &str = "networking.resources.gardener.cloud";

/// Label of namespaces that Kubernetes 1.20 does not put there itself.
pub(crate) const NAME: &str = "kubernetes.io/metadata.name";

/// Policies by `namespace/name`.
pub(crate) type Policies = BTreeMap<String, Value>;

/// One connection to the API server, opened again when it was cut.
pub(crate) struct Api {
    target: Target,
    connection: Option<Connection>,
}

/// Returns the path of the Services of a namespace.
pub(crate) fn services(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/services")
}

/// Returns the path of the pods of a namespace.
pub(crate) fn pods(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/pods")
}

/// Returns the path of the policies of a namespace.
pub(crate) fn policies_of(namespace: &str) -> String {
    format!("/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies")
}

/// Returns a Service that selects pods by the label `app` and has one port.
pub(crate) fn service(name: &str, port: u16) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": { "name": name, "annotations": {} },
        "spec": { "clusterIP": "None", "selector": { "app": name }, "ports": [{ "port": port }] },
    })
}

/// Returns a pod that never runs.
pub(crate) fn pod(name: &str, labels: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "labels": labels },
        "spec": { "containers": [{ "name": "c", "image": "registry.example.com/c" }] },
    })
}

impl Api {
    pub(crate) fn new(target: Target) -> Self {
        Self {
            target,
            connection: None,
        }
    }

    pub(crate) fn request(&mut self, method: &str, path: &str, body: Option<&Value>) -> Response {
        let body = body.map(Value::to_string);
        for last in [false, true] {
            let connection = match &mut self.connection {
                Some(connection) => connection,
                None => self
                    .connection
                    .insert(Connection::open(&self.target).unwrap()),
            };
            match connection.request(method, path, body.as_deref()) {
                Ok(answer) => return answer,
                // It may have been idle for too long, or be from before a restart.
                Err(error) if last => panic!("{method} {path}: {error:#}"),
                Err(_) => self.connection = None,
            }
        }
        unreachable!("the second attempt returns")
    }

    /// As [`Api::request`], which must be answered with success.
    pub(crate) fn must(&mut self, method: &str, path: &str, body: Option<&Value>) -> Value {
        let answer = self.request(method, path, body);
        let good = (200..300).contains(&answer.status);
        assert!(good, "{method} {path}: {} {}", answer.status, answer.text());
        answer.json().unwrap()
    }

    pub(crate) fn create(&mut self, path: &str, object: &Value) -> Value {
        self.must("POST", path, Some(object))
    }

    pub(crate) fn patch(&mut self, path: &str, change: &Value) -> Value {
        self.must("PATCH", path, Some(change))
    }

    pub(crate) fn delete(&mut self, path: &str) {
        self.must("DELETE", path, None);
    }

    /// Deletes a pod, for which no node has to be asked.
    pub(crate) fn delete_pod(&mut self, namespace: &str, name: &str) {
        let path = format!("{}/{name}", pods(namespace));
        let now = json!({ "gracePeriodSeconds": 0 });
        self.must("DELETE", &path, Some(&now));
    }

    /// Returns an object, `None` when there is none.
    pub(crate) fn find(&mut self, path: &str) -> Option<Value> {
        let answer = self.request("GET", path, None);
        match answer.status {
            200 => Some(answer.json().unwrap()),
            404 => None,
            other => panic!("GET {path}: {other} {}", answer.text()),
        }
    }

    /// Creates a namespace with the label that carries its name, and others.
    pub(crate) fn namespace(&mut self, name: &str, labels: &Value) {
        let mut object = json!({
            "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name, "labels": labels },
        });
        object["metadata"]["labels"][NAME] = json!(name);
        self.create("/api/v1/namespaces", &object);
    }

    /// Sets annotations of a Service; null takes one away.
    pub(crate) fn annotate(&mut self, namespace: &str, name: &str, annotations: &Value) {
        let path = format!("{}/{name}", services(namespace));
        self.patch(
            &path,
            &json!({ "metadata": { "annotations": annotations } }),
        );
    }

    /// Returns the items of a list.
    pub(crate) fn list(&mut self, path: &str) -> Vec<Value> {
        let list = self.must("GET", path, None);
        list["items"].as_array().unwrap().clone()
    }

    /// Returns every policy there is.
    pub(crate) fn policies(&mut self) -> Policies {
        let items = self.list("/apis/networking.k8s.io/v1/networkpolicies");
        items.into_iter().map(|one| (key(&one), one)).collect()
    }

    /// Waits until `good` accepts the policies there are, and returns them.
    pub(crate) fn wait_policies(
        &mut self,
        what: &str,
        good: impl Fn(&Policies) -> bool,
    ) -> Policies {
        self.wait_policies_for(LIMIT, what, good)
    }

    pub(crate) fn wait_policies_for(
        &mut self,
        limit: Duration,
        what: &str,
        good: impl Fn(&Policies) -> bool,
    ) -> Policies {
        let mut last = Policies::new();
        let reached = wait::until(what, limit, || {
            last = self.policies();
            let reached = good(&last);
            if !reached {
                // A list of thousands takes a processor that others need.
                wait::pause(Duration::from_millis(last.len().min(400) as u64));
            }
            reached
        });
        let names: Vec<_> = last.keys().take(100).collect();
        assert!(reached.is_ok(), "{reached:?}; there are {names:#?}");
        last
    }

    /// Waits until there are exactly the policies named.
    pub(crate) fn wait_names(&mut self, what: &str, names: &[&str]) -> Policies {
        let mut wanted: Vec<_> = names.to_vec();
        wanted.sort_unstable();
        self.wait_policies(what, |found| found.keys().eq(wanted.iter()))
    }

    /// Returns `object: reason` of every Event, sorted.
    pub(crate) fn events(&mut self) -> Vec<String> {
        let events = self.list("/api/v1/events");
        let reported = |event: &Value| {
            let (about, text) = (&event["involvedObject"], |value: &Value| {
                value.as_str().unwrap_or_default().to_owned()
            });
            let (namespace, name) = (text(&about["namespace"]), text(&about["name"]));
            format!("{namespace}/{name}: {}", text(&event["reason"]))
        };
        let mut reported: Vec<_> = events.iter().map(reported).collect();
        reported.sort();
        reported
    }

    /// Waits until exactly these Events are there.
    pub(crate) fn wait_events(&mut self, wanted: &[&str]) {
        let mut last = Vec::new();
        let reported = wait::until("Events", LIMIT, || {
            last = self.events();
            last == wanted
        });
        assert!(
            reported.is_ok(),
            "{reported:?} of {wanted:?}; there are {last:?}"
        );
    }
}

/// Returns `namespace/name` of an object.
pub(crate) fn key(object: &Value) -> String {
    let part = |name: &str| object["metadata"][name].as_str().unwrap().to_owned();
    format!("{}/{}", part("namespace"), part("name"))
}

/// Returns the versions of objects: unchanged ones have not been written.
pub(crate) fn versions(policies: &Policies) -> BTreeMap<&str, &Value> {
    let all = policies.iter();
    all.map(|(key, object)| (key.as_str(), &object["metadata"]["resourceVersion"]))
        .collect()
}

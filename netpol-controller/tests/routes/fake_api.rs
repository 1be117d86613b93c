//! An API server of Kubernetes 1.3x as far as a watch of Services and EndpointSlices sees one:
//! discovery, lists with a version, watches with bookmarks, deletions, 410.
//!
//! Objects have the shape of the API documentation (`discovery.k8s.io/v1`), the empty lists of Go (`null`)
//! included. What it leaves out: authentication, pages, field selectors, admission, defaults, and every
//! other kind. A real one is met in `alike`; that serves slices in v1beta1 alone.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

/// A running server; its threads end with the test's process.
pub(crate) struct FakeApi {
    pub(crate) addr: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Versions of `discovery.k8s.io`, the preferred one first.
    slice_versions: Vec<&'static str>,
    version: u64,
    objects: BTreeMap<(&'static str, String), Value>,
    /// Changes with the version each made and its resource.
    log: Vec<(u64, &'static str, Value)>,
    /// Watches from before this version are told that it is gone.
    oldest: u64,
}

/// Resources with their paths up to the version, and their kinds.
const RESOURCES: [(&str, &str, &str); 4] = [
    ("namespaces", "/api", "Namespace"),
    ("services", "/api", "Service"),
    ("endpoints", "/api", "Endpoints"),
    ("endpointslices", "/apis/discovery.k8s.io", "EndpointSlice"),
];

impl FakeApi {
    /// Serves slices in these versions, and nothing else yet.
    pub(crate) fn start(slice_versions: &[&'static str]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let shared = Arc::new(Shared::default());
        shared.lock().slice_versions = slice_versions.to_vec();
        shared.lock().version = 1000;
        let own = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let own = Arc::clone(&own);
                thread::spawn(move || own.serve(&stream));
            }
        });
        Self { addr, shared }
    }

    /// Serves slices in these versions from now on.
    pub(crate) fn set_slice_versions(&self, versions: &[&'static str]) {
        self.shared.lock().slice_versions = versions.to_vec();
    }

    /// Creates an object, or replaces it.
    pub(crate) fn put(&self, resource: &'static str, object: Value) {
        self.shared.change(resource, object, false);
    }

    /// Deletes an object.
    pub(crate) fn delete(&self, resource: &'static str, namespace: &str, name: &str) {
        let key = (resource, format!("{namespace}/{name}"));
        let object = self.shared.lock().objects[&key].clone();
        self.shared.change(resource, object, true);
    }

    /// Forgets all changes so far and ends the watches: each has to list anew.
    pub(crate) fn compact(&self) {
        let mut state = self.shared.lock();
        state.version += 1;
        state.oldest = state.version;
        drop(state);
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, resource: &'static str, mut object: Value, gone: bool) {
        let mut state = self.lock();
        state.version += 1;
        let version = state.version;
        let meta = &mut object["metadata"];
        meta["resourceVersion"] = json!(version.to_string());
        let text = |field: &str| meta[field].as_str().unwrap_or_default().to_owned();
        let key = (resource, format!("{}/{}", text("namespace"), text("name")));
        let before = if gone {
            state.objects.remove(&key)
        } else {
            state.objects.insert(key, object.clone())
        };
        let kind = match (gone, before) {
            (true, _) => "DELETED",
            (false, Some(_)) => "MODIFIED",
            (false, None) => "ADDED",
        };
        let event = json!({ "type": kind, "object": object });
        state.log.push((version, resource, event));
        drop(state);
        self.changed.notify_all();
    }

    /// Answers requests of one connection.
    fn serve(&self, stream: &TcpStream) {
        let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
        while let Some(request) = lines.next() {
            // No request has a body.
            let _head: Vec<String> = lines.by_ref().take_while(|line| !line.is_empty()).collect();
            let target = request.split(' ').nth(1).unwrap_or_default();
            let (path, query) = target.split_once('?').unwrap_or((target, ""));
            let done = match self.resource(path) {
                Some((resource, version)) if parameter(query, "watch") == Some("true") => {
                    let from = parameter(query, "resourceVersion").unwrap_or_default();
                    self.watch(stream, resource, version, from.parse().unwrap_or_default())
                }
                _ => answer(stream, &self.document(path)),
            };
            if done.is_err() {
                return;
            }
        }
    }

    /// Returns the resource at `path` and its version, if that is served.
    fn resource(&self, path: &str) -> Option<(&'static str, String)> {
        RESOURCES.iter().find_map(|(resource, prefix, _)| {
            let version = path.strip_prefix(prefix)?.strip_prefix('/')?;
            // One namespace's are all that it has here.
            let (version, rest) = version.split_once('/')?;
            let found = rest == *resource || rest == format!("namespaces/default/{resource}");
            let served = *prefix == "/api" || self.lock().slice_versions.contains(&version);
            (found && served).then(|| (*resource, version.to_owned()))
        })
    }

    fn document(&self, path: &str) -> Option<Value> {
        if let Some((resource, version)) = self.resource(path) {
            let state = self.lock();
            let items = state
                .objects
                .iter()
                .filter(|((own, _), _)| *own == resource);
            let items: Vec<Value> = items
                .map(|(_, object)| in_version(object, &version))
                .collect();
            return Some(json!({
                "kind": "List", "apiVersion": "v1", "items": items,
                "metadata": { "resourceVersion": state.version.to_string() },
            }));
        }
        let versions = self.lock().slice_versions.clone();
        let known = |prefix: &str, group_version: &str| {
            let own = RESOURCES.iter().filter(|(_, own, _)| *own == prefix);
            let own = own.map(|(resource, _, kind)| {
                json!({
                    "name": resource, "singularName": kind.to_lowercase(), "kind": kind,
                    "namespaced": true, "verbs": ["get", "list", "watch"],
                })
            });
            let own: Vec<Value> = own.collect();
            json!({ "kind": "APIResourceList", "groupVersion": group_version, "resources": own })
        };
        match path {
            "/readyz" => Some(json!("ok")),
            "/api" => Some(json!({
                "kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": [],
            })),
            "/api/v1" => Some(known("/api", "v1")),
            "/apis" => {
                let all = versions.iter().map(|version| {
                    json!({ "groupVersion": format!("discovery.k8s.io/{version}"), "version": version })
                });
                let all: Vec<Value> = all.collect();
                Some(json!({
                    "kind": "APIGroupList", "apiVersion": "v1", "groups": [{
                        "name": "discovery.k8s.io", "preferredVersion": all[0], "versions": all,
                    }],
                }))
            }
            _ => {
                let group_version = path.strip_prefix("/apis/")?;
                let version = group_version.strip_prefix("discovery.k8s.io/")?;
                versions
                    .contains(&version)
                    .then(|| known("/apis/discovery.k8s.io", group_version))
            }
        }
    }

    /// Sends changes after `from` until the client is gone; a bookmark when there is none for a second.
    fn watch(
        &self,
        mut stream: &TcpStream,
        resource: &str,
        version: String,
        mut from: u64,
    ) -> std::io::Result<()> {
        stream.write_all(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n",
        )?;
        let mut send = |event: &Value| {
            let line = format!("{event}\n");
            write!(stream, "{:x}\r\n{line}\r\n", line.len())
        };
        loop {
            let state = self.lock();
            if from < state.oldest {
                let gone = json!({
                    "kind": "Status", "apiVersion": "v1", "status": "Failure", "metadata": {},
                    "message": format!("too old resource version: {from} ({})", state.oldest),
                    "reason": "Expired", "code": 410,
                });
                drop(state);
                send(&json!({ "type": "ERROR", "object": gone }))?;
                return stream.write_all(b"0\r\n\r\n");
            }
            let new = state
                .log
                .iter()
                .filter(|(at, own, _)| *at > from && *own == resource);
            let mut new: Vec<Value> = new.map(|(_, _, event)| event.clone()).collect();
            from = state.version;
            if new.is_empty() {
                let limit = Duration::from_secs(1);
                let (state, waited) = (self.changed.wait_timeout(state, limit))
                    .unwrap_or_else(PoisonError::into_inner);
                drop(state);
                if waited.timed_out() {
                    let version = json!({ "resourceVersion": from.to_string() });
                    let object =
                        json!({ "kind": "Bookmark", "apiVersion": "v1", "metadata": version });
                    send(&json!({ "type": "BOOKMARK", "object": object }))?;
                }
                continue;
            }
            drop(state);
            for event in &mut new {
                event["object"] = in_version(&event["object"], &version);
                send(event)?;
            }
        }
    }
}

/// Returns a slice of v1 as the older version has it: zone and node in `topology`.
fn in_version(object: &Value, version: &str) -> Value {
    let mut object = object.clone();
    if object["kind"] == "EndpointSlice" {
        object["apiVersion"] = json!(format!("discovery.k8s.io/{version}"));
        let endpoints = object["endpoints"]
            .as_array_mut()
            .filter(|_| version != "v1");
        for endpoint in endpoints.into_iter().flatten() {
            let fields = endpoint.as_object_mut().unwrap();
            let zone = fields.remove("zone").unwrap_or_default();
            fields.insert(
                "topology".to_owned(),
                json!({ "topology.kubernetes.io/zone": zone }),
            );
        }
    }
    object
}

fn parameter<'q>(query: &'q str, name: &str) -> Option<&'q str> {
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.find(|(own, _)| *own == name).map(|(_, value)| value)
}

fn answer(mut stream: &TcpStream, document: &Option<Value>) -> std::io::Result<()> {
    let missing = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound",
        "message": "the server could not find the requested resource", "code": 404, "metadata": {},
    });
    let status = if document.is_some() {
        "200 OK"
    } else {
        "404 Not Found"
    };
    let body = document.as_ref().unwrap_or(&missing).to_string();
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}",
    )
}

//! The API server, as an operator and a test use it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::command;
use testkit::http::{Connection, Response};
use testkit::netns::{Namespace, Place};
use testkit::peers::kube::{KubeApiServer, KubeParams};
use testkit::tempdir::TempDir;

/// A wait that lasts this long has failed; on an idle machine few take a tenth of it.
pub(crate) const LIMIT: Duration = Duration::from_secs(40);

/// The API server, in a namespace.
pub(crate) struct Api<'n> {
    namespace: &'n Namespace,
    pub(crate) server: KubeApiServer,
    kubeconfig: PathBuf,
    audit: PathBuf,
}

impl<'n> Api<'n> {
    /// Starts it at `address`, with `more` arguments. It reaches kubelets as the file `selector` says, by
    /// Services at `hosts`, and writes down what `account` asks.
    pub(crate) fn start(
        namespace: &'n Namespace,
        dir: &TempDir,
        address: SocketAddr,
        (selector, kubelets): (&Path, &Path),
        hosts: &[(&str, String)],
        account: &str,
        more: &[&str],
    ) -> Self {
        let audit = dir.join("audit.log");
        let policy = json!({
            "apiVersion": "audit.k8s.io/v1", "kind": "Policy",
            "omitStages": ["RequestReceived"],
            "rules": [{ "level": "Metadata", "users": [account] }, { "level": "None" }],
        });
        let policy = dir.write("audit-policy.yaml", policy.to_string()).unwrap();
        let mut params = KubeParams::new(address, &[]).kubelets(selector, kubelets);
        params.services = "10.0.128.0/20".to_owned();
        let hosts = hosts.iter();
        let hosts = hosts.map(|(name, address)| (address.parse().unwrap(), (*name).to_owned()));
        params.hosts = hosts.collect();
        params.arguments.extend([
            "--feature-gates=MixedProtocolLBService=true".to_owned(),
            format!("--audit-policy-file={}", policy.display()),
            format!("--audit-log-path={}", audit.display()),
        ]);
        let more = more.iter().map(|argument| (*argument).to_owned());
        params.arguments.extend(more);
        let server = KubeApiServer::start(Place::In(namespace), &dir.join("kube"), &params);
        let server = server.unwrap_or_else(|error| panic!("{error:#}"));
        let kubeconfig = dir.join("admin.kubeconfig");
        server
            .write_kubeconfig(&kubeconfig, server.addr(), None)
            .unwrap();
        Self {
            namespace,
            server,
            kubeconfig,
            audit,
        }
    }

    /// Starts it anew, with what the file of its selector says now.
    pub(crate) fn restart(&mut self) {
        self.server.child().kill().unwrap();
        let again = self.server.start_again(Place::In(self.namespace));
        again.unwrap_or_else(|error| panic!("{error:#}"));
    }

    /// Runs `kubectl` with a file of objects, and returns how it ended.
    pub(crate) fn kubectl(&self, arguments: &[&str], objects: &[Value]) -> Output {
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects });
        let file = self.kubeconfig.with_extension("objects.json");
        std::fs::write(&file, list.to_string()).unwrap();
        let file = format!("--filename={}", file.display());
        self.run(&[arguments, &[&file]].concat())
    }

    /// Runs `kubectl`, and returns how it ended.
    fn run(&self, arguments: &[&str]) -> Output {
        let mut kubectl = Place::In(self.namespace).command(command::require("timeout").unwrap());
        kubectl.arg("60").arg(command::require("kubectl").unwrap());
        kubectl.arg("--kubeconfig").arg(&self.kubeconfig);
        kubectl
            .arg("--cache-dir")
            .arg(self.kubeconfig.with_extension("cache"));
        command::output(kubectl.args(arguments)).unwrap()
    }

    /// As [`Api::kubectl`], without a file where there are no objects; it must succeed.
    pub(crate) fn must_kubectl(&self, arguments: &[&str], objects: &[Value]) {
        let output = match objects {
            [] => self.run(arguments),
            _ => self.kubectl(arguments, objects),
        };
        assert!(output.status.success(), "{arguments:?}: {}", text(&output));
    }

    /// Applies objects server-side, all of whose fields the server must know.
    pub(crate) fn apply(&self, objects: &[Value]) {
        self.apply_as("kubectl", objects);
    }

    /// As [`Api::apply`], by another manager: what others have put into the same objects stays.
    pub(crate) fn apply_as(&self, manager: &str, objects: &[Value]) {
        let manager = format!("--field-manager={manager}");
        let flags = ["apply", "--server-side", "--validate=false", &manager];
        self.must_kubectl(&flags, objects);
    }

    /// Returns what an apply would change, in words; nothing if nothing.
    pub(crate) fn difference(&self, objects: &[Value]) -> String {
        let output = self.kubectl(&["diff", "--server-side"], objects);
        // 1 is for a difference, more for a failure.
        let code = output.status.code();
        assert!(matches!(code, Some(0 | 1)), "{code:?}: {}", text(&output));
        if code == Some(0) {
            String::new()
        } else {
            text(&output)
        }
    }

    pub(crate) fn request(&self, method: &str, path: &str, body: Option<&Value>) -> Response {
        let (target, body) = (
            self.server.target().timeout(LIMIT),
            body.map(Value::to_string),
        );
        let asked = self.namespace.run(|| {
            Connection::open(&target).and_then(|mut own| own.request(method, path, body.as_deref()))
        });
        asked
            .unwrap()
            .unwrap_or_else(|error| panic!("{method} {path}: {error:#}"))
    }

    /// As [`Api::request`], which must be answered with success.
    pub(crate) fn must(&self, method: &str, path: &str, body: Option<&Value>) -> Value {
        let answer = self.request(method, path, body);
        let good = (200..300).contains(&answer.status);
        assert!(good, "{method} {path}: {} {}", answer.status, answer.text());
        answer.json().unwrap()
    }

    /// Tells whether the server has a kind, in a version of its group such as `apps/v1`.
    pub(crate) fn serves(&self, version: &str, kind: &str) -> bool {
        let path = match version {
            "v1" => "/api/v1".to_owned(),
            group => format!("/apis/{group}"),
        };
        let answer = self.request("GET", &path, None);
        let resources = answer.json().unwrap_or_default();
        let mut all = resources["resources"].as_array().into_iter().flatten();
        answer.status == 200 && all.any(|own| own["kind"] == kind)
    }

    /// Returns a token of a service account, for the API server itself.
    pub(crate) fn token(&self, namespace: &str, account: &str) -> String {
        let request = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "spec": { "expirationSeconds": 3600 },
        });
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token");
        let answer = self.must("POST", &path, Some(&request));
        answer["status"]["token"].as_str().unwrap().to_owned()
    }

    /// Returns what was asked so far by whom it writes down, one event for each request.
    pub(crate) fn audit(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(&self.audit).unwrap_or_default();
        // A line that is still being written does not count.
        text.lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()
    }
}

fn text(output: &Output) -> String {
    let bytes = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    String::from_utf8_lossy(&bytes).into_owned()
}

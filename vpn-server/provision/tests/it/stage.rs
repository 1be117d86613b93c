//! A cluster without nodes that is seed and shoot at once, and runs of the program in it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use testkit::command;
use testkit::http::{Connection, Response};
use testkit::netns::Place;
use testkit::peers::kube::{KubeApiServer, KubeParams};
use testkit::tempdir::TempDir;

use crate::programs::announce;

/// Who runs the program.
const USER: &str = "system:serviceaccount:garden:vpn-provision";

/// Longer than any single effect takes.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

pub(crate) struct Stage {
    pub(crate) dir: TempDir,
    server: KubeApiServer,
}

impl Stage {
    /// Starts a cluster that has control planes of these names, with two servers' Services each.
    pub(crate) fn new(planes: &[&str]) -> Self {
        for peer in ["etcd", "kube-apiserver", "kubectl"] {
            announce(peer);
        }
        let dir = TempDir::new("provision").unwrap();
        let params = KubeParams::new(SocketAddr::from(([127, 0, 0, 1], 0)), &[]);
        let server = KubeApiServer::start(Place::Here, &dir.join("kube"), &params)
            .unwrap_or_else(|error| panic!("{error:#}"));
        let stage = Self { dir, server };
        let admin = stage.dir.join("admin.kubeconfig");
        let addr = stage.server.addr();
        stage.server.write_kubeconfig(&admin, addr, None).unwrap();
        let text = std::fs::read_to_string(&admin).unwrap();
        let mut kubeconfig: Value = serde_json::from_str(&text).unwrap();
        kubeconfig["users"][0]["user"]["as"] = json!(USER);
        let text = format!("{kubeconfig:#}");
        stage.dir.write("kubeconfig", text).unwrap();
        for name in ["garden"].iter().chain(planes) {
            let namespace = json!({
                "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name },
            });
            stage.create("/api/v1/namespaces", &namespace);
        }
        for plane in planes {
            for number in 0..2 {
                stage.service(plane, &format!("vpn-seed-server-{number}"), &json!({}));
            }
        }
        stage.dir.write("roles.yaml", roles(planes)).unwrap();
        stage.kubectl(&["create", "-f", "roles.yaml"]);
        stage
    }

    /// Starts another cluster, for the shoot alone, and writes `shoot.kubeconfig` for it.
    pub(crate) fn shoot(&self) -> KubeApiServer {
        let params = KubeParams::new(SocketAddr::from(([127, 0, 0, 1], 0)), &[]);
        let shoot = KubeApiServer::start(Place::Here, &self.dir.join("shoot"), &params)
            .unwrap_or_else(|error| panic!("{error:#}"));
        let kubeconfig = self.dir.join("shoot.kubeconfig");
        shoot
            .write_kubeconfig(&kubeconfig, shoot.addr(), None)
            .unwrap();
        shoot
    }

    /// Writes a file of parameters for a control plane.
    pub(crate) fn parameters(&self, plane: &str, more: &str) -> PathBuf {
        let text = format!(
            "namespace: {plane}\nnetworks: {{ pods: [\"100.96.0.0/11\"] }}\n\
             endpoint: {{ address: api.example.com }}\n{more}"
        );
        self.dir.write(format!("{plane}.yaml"), text).unwrap()
    }

    /// Prepares a run of the program for a control plane.
    pub(crate) fn command(&self, plane: &str, words: &[&str]) -> Command {
        let mut command = Command::new("timeout");
        command.current_dir(self.dir.path()).arg("60");
        command
            .arg(env!("CARGO_BIN_EXE_vpn-provision"))
            .arg("--config");
        command.arg(format!("{plane}.yaml")).args(words);
        command
    }

    /// Runs the program on both clusters.
    pub(crate) fn run(&self, plane: &str, words: &[&str]) -> Output {
        let both = [
            "--kubeconfig",
            "kubeconfig",
            "--shoot-kubeconfig",
            "kubeconfig",
        ];
        let mut command = self.command(plane, &both);
        command.args(words).output().unwrap()
    }

    /// As [`Stage::run`], which must succeed; returns what it printed.
    pub(crate) fn must(&self, plane: &str, words: &[&str]) -> String {
        let output = self.run(plane, words);
        assert!(output.status.success(), "{}", said(&output));
        said(&output)
    }

    /// Runs kubectl as one who may do everything.
    pub(crate) fn kubectl(&self, words: &[&str]) -> String {
        let mut kubectl = Command::new("timeout");
        kubectl.current_dir(self.dir.path());
        kubectl.args(["60", "kubectl", "--kubeconfig", "admin.kubeconfig"]);
        kubectl.args(["--cache-dir", "kubectl"]).args(words);
        command::run(&mut kubectl).unwrap_or_else(|error| panic!("{error:#}"))
    }

    pub(crate) fn service(&self, namespace: &str, name: &str, annotations: &Value) {
        let service = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": { "name": name, "annotations": annotations },
            "spec": { "ports": [
                { "name": "tunnel", "port": 1194 },
                { "name": "wrapped", "port": 51821, "protocol": "UDP" },
            ] },
        });
        self.create(
            &format!("/api/v1/namespaces/{namespace}/services"),
            &service,
        );
    }

    pub(crate) fn create(&self, path: &str, object: &Value) {
        let answer = self.request("POST", path, Some(object));
        assert_eq!(answer.status, 201, "{path}: {}", answer.text());
    }

    pub(crate) fn delete(&self, path: &str) {
        let answer = self.request("DELETE", path, None);
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    }

    /// Returns an object, `None` when there is none.
    pub(crate) fn find(&self, path: &str) -> Option<Value> {
        let answer = self.request("GET", path, None);
        (answer.status == 200).then(|| answer.json().unwrap())
    }

    /// Returns all Secrets, claims and Services that there are, by `namespace/name`, each with its
    /// version: unchanged ones have not been written.
    pub(crate) fn versions(&self) -> BTreeMap<String, String> {
        let lists = ["secrets", "configmaps", "services"].map(|kind| {
            let list = self.find(&format!("/api/v1/{kind}")).unwrap();
            list["items"].as_array().unwrap().clone()
        });
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let all = lists.iter().flatten().map(|one| {
            let meta = &one["metadata"];
            let key = format!("{}/{}", text(&meta["namespace"]), text(&meta["name"]));
            (key, text(&meta["resourceVersion"]))
        });
        // The API server keeps its own up to date.
        let foreign = |key: &String| key.starts_with("kube-") || key.starts_with("default/");
        all.filter(|(key, _)| !foreign(key) || key.contains("vpn-"))
            .collect()
    }

    /// Returns the claims, with whose they are.
    pub(crate) fn claims(&self) -> BTreeMap<String, String> {
        let list = self.find("/api/v1/namespaces/garden/configmaps").unwrap();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let items = list["items"].as_array().unwrap().iter();
        items
            .map(|one| {
                (
                    text(&one["metadata"]["name"]),
                    text(&one["data"]["service"]),
                )
            })
            .filter(|(name, _)| name.starts_with("rhizome-route-id-"))
            .collect()
    }

    /// Returns the files of a Secret.
    pub(crate) fn secret(&self, namespace: &str, name: &str) -> BTreeMap<String, String> {
        let secret = self.find(&secret_path(namespace, name));
        let secret = secret.unwrap_or_else(|| panic!("no Secret {namespace}/{name}"));
        let files = secret["data"].as_object().unwrap().iter();
        files
            .map(|(file, text)| (file.clone(), decode(text)))
            .collect()
    }

    /// Returns what is remembered of a control plane, if anything is.
    pub(crate) fn state(&self, plane: &str) -> Option<Value> {
        self.find(&secret_path(plane, "vpn-provision"))?;
        let files = self.secret(plane, "vpn-provision");
        Some(serde_json::from_str(&files["state.json"]).unwrap())
    }

    fn request(&self, method: &str, path: &str, body: Option<&Value>) -> Response {
        let mut connection = Connection::open(&self.server.target()).unwrap();
        let body = body.map(Value::to_string);
        connection.request(method, path, body.as_deref()).unwrap()
    }
}

/// Returns a file of a Secret as it is.
pub(crate) fn decode(file: &Value) -> String {
    let bytes = STANDARD.decode(file.as_str().unwrap()).unwrap();
    String::from_utf8(bytes).unwrap()
}

pub(crate) fn secret_path(namespace: &str, name: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/secrets/{name}")
}

/// Returns everything that a run has printed.
pub(crate) fn said(output: &Output) -> String {
    [&output.stdout, &output.stderr]
        .map(|bytes| String::from_utf8_lossy(bytes).into_owned())
        .concat()
}

/// The roles that the documentation shows, bound where they are needed.
fn roles(planes: &[&str]) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/vpn-provisioning.md");
    let document = std::fs::read_to_string(path).unwrap();
    let begins = "```yaml\n# roles.yaml\n";
    let shown = document
        .split_once(begins)
        .expect("the roles in docs/vpn-provisioning.md")
        .1;
    let shown = shown.split_once("```").unwrap().0;
    let mut text = String::new();
    for part in shown.split("---\n") {
        let role: Value = settings::yaml::from_str(part, "roles".as_ref()).unwrap();
        let (kind, name) = (role["kind"].as_str().unwrap(), &role["metadata"]["name"]);
        let namespaces: Vec<Option<&str>> = match role["metadata"]["namespace"].as_str() {
            None => vec![None],
            Some("shoot--foo--bar") => planes.iter().copied().map(Some).collect(),
            Some(other) => vec![Some(other)],
        };
        for namespace in namespaces {
            let mut role = role.clone();
            let mut binding = json!({
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": format!("{kind}Binding"),
                "metadata": { "name": name },
                "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name },
                "subjects": [
                    { "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": USER },
                ],
            });
            if let Some(namespace) = namespace {
                role["metadata"]["namespace"] = json!(namespace);
                binding["metadata"]["namespace"] = json!(namespace);
            }
            text += &format!("---\n{role}\n---\n{binding}\n");
        }
    }
    text
}

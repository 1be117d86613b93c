//! A cluster without nodes, and controllers in it that may do what the README says they must.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use testkit::command;
use testkit::http::{Connection, Target};
use testkit::netns::Place;
use testkit::peers::kube::{KubeApiServer, KubeParams};
use testkit::tempdir::TempDir;

use crate::api::Api;
use crate::child::{Child, run};
use crate::programs::announce;

/// Who the controllers are.
const USER: &str = "system:serviceaccount:garden:rhizome-netpol-controller";

/// The part `controllers` of a configuration with the user's document in effect, and its ingress
/// controller.
pub(crate) const DOCUMENT: &str = "  networkPolicy:
    ingressControllerSelector: { namespace: default, podSelector: { matchLabels: { foo: bar } } }
";

/// The same with Services only.
pub(crate) const SERVICES: &str = "  networkPolicy: { enabled: true }\n";

/// A cluster.
pub(crate) struct Stage {
    pub(crate) dir: TempDir,
    pub(crate) server: KubeApiServer,
}

impl Stage {
    /// Starts a cluster with the namespace `garden` and the README's roles.
    pub(crate) fn new(name: &str) -> Self {
        for peer in ["etcd", "kube-apiserver", "kubectl"] {
            announce(peer);
        }
        let dir = TempDir::new(name).unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let params = KubeParams::new(address, &[]);
        let server = KubeApiServer::start(Place::Here, &dir.join("kube"), &params)
            .unwrap_or_else(|error| panic!("{error:#}"));
        let stage = Self { dir, server };
        stage.api().namespace("garden", &json!({}));
        stage.allow();
        stage
    }

    /// Creates the controllers' user with the README's roles, and a kubeconfig.
    fn allow(&self) {
        let addr = self.server.addr();
        let admin = self.dir.join("admin.kubeconfig");
        self.server.write_kubeconfig(&admin, addr, None).unwrap();
        let text = std::fs::read_to_string(&admin).unwrap();
        let mut kubeconfig: Value = serde_json::from_str(&text).unwrap();
        kubeconfig["users"][0]["user"]["as"] = json!(USER);
        self.dir
            .write("kubeconfig", format!("{kubeconfig:#}"))
            .unwrap();
        self.dir.write("roles.yaml", roles()).unwrap();
        let mut kubectl = Command::new("timeout");
        kubectl.args(["60", "kubectl", "--kubeconfig"]).arg(&admin);
        kubectl.arg("--cache-dir").arg(self.dir.join("kubectl"));
        kubectl
            .args(["create", "-f"])
            .arg(self.dir.join("roles.yaml"));
        command::run(&mut kubectl).unwrap_or_else(|error| panic!("{error:#}"));
    }

    /// Returns a connection as one who may do everything.
    pub(crate) fn api(&self) -> Api {
        Api::new(self.server.target())
    }

    /// Writes the configuration of the controller `name`, with `controllers` as that part of it.
    fn config(&self, controllers: &str, election: bool) -> String {
        format!(
            "kubeconfig: kubeconfig\n\
             leaderElection: {{ enabled: {election} }}\n\
             probes: {{ address: \"127.0.0.1:0\" }}\n\
             admin: {{ address: \"127.0.0.1:0\" }}\n\
             controllers:\n{controllers}"
        )
    }

    /// Starts a controller that stands for election.
    pub(crate) fn replica(&self, name: &str, controllers: &str) -> Child {
        Child::start(self.dir.path(), name, &self.config(controllers, true))
    }

    /// Starts the only controller, and waits until everything is known to it.
    pub(crate) fn controller(&self, name: &str, controllers: &str) -> Child {
        let config = self.config(controllers, false);
        let child = Child::start(self.dir.path(), name, &config);
        child.wait_ready();
        child
    }

    /// Runs a controller with `--dry-run`, and returns what it prints.
    pub(crate) fn dry_run(&self, controllers: &str) -> String {
        let config = self.config(controllers, false);
        self.dir.write("dry-run.yaml", config).unwrap();
        let flags = ["--config", "dry-run.yaml", "--dry-run"];
        let output = run(self.dir.path(), &flags);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    }

    /// Asks etcd by its HTTP gateway.
    pub(crate) fn etcd(&self, path: &str, question: &Value) -> Value {
        let target = Target::plain(self.server.etcd_addr());
        let mut connection = Connection::open(&target).unwrap();
        let answer = connection.request("POST", path, Some(&question.to_string()));
        let answer = answer.unwrap();
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        answer.json().unwrap()
    }
}

/// The roles that the README shows, and bindings for them.
fn roles() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    let readme = std::fs::read_to_string(path).unwrap();
    let shown = readme.split_once("```yaml\n").unwrap().1;
    let mut text = shown.split_once("```").unwrap().0.to_owned();
    for (kind, place) in [("ClusterRole", ""), ("Role", ", namespace: garden")] {
        let _ = write!(
            text,
            "---\n\
             apiVersion: rbac.authorization.k8s.io/v1\n\
             kind: {kind}Binding\n\
             metadata: {{ name: rhizome-netpol-controller{place} }}\n\
             roleRef: {{ apiGroup: rbac.authorization.k8s.io, kind: {kind}, name: rhizome-netpol-controller }}\n\
             subjects: [{{ apiGroup: rbac.authorization.k8s.io, kind: User, name: \"{USER}\" }}]\n"
        );
    }
    text
}

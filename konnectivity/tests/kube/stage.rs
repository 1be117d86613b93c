//! A cluster without nodes, its accounts and their tokens.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::http::Connection;
use testkit::netns::Place;
use testkit::peers::kube::{KubeApiServer, KubeParams};
use testkit::tempdir::TempDir;

/// How long an effect may take to be seen.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// A cluster.
pub(crate) struct Stage {
    pub(crate) dir: TempDir,
    pub(crate) server: KubeApiServer,
}

impl Stage {
    /// Starts a cluster in which the account `kube-system/<account>` has the roles of the
    /// document, by its part `part`.
    pub(crate) fn new(name: &str, account: &str, part: &str) -> Self {
        let dir = TempDir::new(name).unwrap();
        let params = KubeParams::new(SocketAddr::from(([127, 0, 0, 1], 0)), &[]);
        let server = KubeApiServer::start(Place::Here, &dir.join("kube"), &params)
            .unwrap_or_else(|error| panic!("{error:#}"));
        let stage = Self { dir, server };
        stage.account("kube-system", account);
        for object in roles(part) {
            let kind = object["kind"].as_str().unwrap().to_lowercase();
            let group = "/apis/rbac.authorization.k8s.io/v1";
            let path = match object["metadata"]["namespace"].as_str() {
                Some(namespace) => format!("{group}/namespaces/{namespace}/{kind}s"),
                None => format!("{group}/{kind}s"),
            };
            stage.must("POST", &path, Some(&object));
        }
        stage
    }

    /// Makes a request as one who may do everything; it must succeed.
    pub(crate) fn must(&self, method: &str, path: &str, body: Option<&Value>) -> Value {
        let (status, value) = self.request(method, path, body);
        assert!(
            (200..300).contains(&status),
            "{method} {path}: {status} {value}"
        );
        value
    }

    /// Makes a request; returns the status and the body.
    pub(crate) fn request(&self, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
        let mut connection = Connection::open(&self.server.target()).unwrap();
        let body = body.map(Value::to_string);
        let answer = connection.request(method, path, body.as_deref()).unwrap();
        (answer.status, answer.json().unwrap_or_default())
    }

    /// Makes a namespace, unless it is there, and an account in it.
    pub(crate) fn account(&self, namespace: &str, name: &str) {
        let space = json!({ "metadata": { "name": namespace } });
        let (status, value) = self.request("POST", "/api/v1/namespaces", Some(&space));
        assert!(matches!(status, 201 | 409), "{status} {value}");
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts");
        self.must(
            "POST",
            &path,
            Some(&json!({ "metadata": { "name": name } })),
        );
    }

    /// Returns a token of an account for `audience`, good for an hour.
    pub(crate) fn token(&self, namespace: &str, account: &str, audience: &str) -> String {
        let request = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "spec": { "audiences": [audience], "expirationSeconds": 3600 },
        });
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token");
        let answer = self.must("POST", &path, Some(&request));
        answer["status"]["token"].as_str().unwrap().to_owned()
    }

    /// Writes a kubeconfig of an account of `kube-system`.
    pub(crate) fn kubeconfig(&self, account: &str) -> PathBuf {
        let path = self.dir.join(format!("{account}.kubeconfig"));
        let addr = self.server.addr();
        self.server.write_kubeconfig(&path, addr, None).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let mut kubeconfig: Value = serde_json::from_str(&text).unwrap();
        let user = format!("system:serviceaccount:kube-system:{account}");
        kubeconfig["users"][0]["user"]["as"] = json!(user);
        std::fs::write(&path, kubeconfig.to_string()).unwrap();
        path
    }
}

/// Returns the roles and bindings in the document's block that begins with `# <part>`, so that it
/// is proven that they are enough.
fn roles(part: &str) -> Vec<Value> {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../docs/konnectivity-kubernetes.md"
    );
    let text = std::fs::read_to_string(path).unwrap();
    let begin = format!("```yaml\n# {part}\n");
    let (_, rest) = text
        .split_once(&begin)
        .unwrap_or_else(|| panic!("no block {part}"));
    let (block, _) = rest.split_once("```").unwrap();
    let objects = block.split("---\n").map(|object| {
        let origin = std::path::Path::new("konnectivity-kubernetes.md");
        settings::yaml::from_str(object, origin).unwrap_or_else(|error| panic!("{part}: {error}"))
    });
    objects.collect()
}

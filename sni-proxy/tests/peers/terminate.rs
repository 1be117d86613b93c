//! Two real kube-apiservers on one etcd behind a route where TLS ends in the gateway, and kubectl in front.
//!
//! `exec` and `port-forward` end at a stand-in for a kubelet. The server is v1.20.2.

mod bulk;
mod flips;
mod streams;
mod subjects;

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use testkit::certs::Identity;
use testkit::command;
use testkit::http::{self, Connection, Target};
use testkit::netns::Place;
use testkit::peers::kube::{KubeApiServer, KubeParams};
use testkit::process::Signal;
use testkit::tempdir::TempDir;
use testkit::wait;

use crate::gateway::{self, CLUSTER, NAME};
use crate::ours::{LIMIT, Ours};
use crate::programs::{announce, client};
use crate::secrets::Secrets;

const SERVER_NAME: &str = "kubernetes.default.svc.cluster.local";

struct Stage {
    // Dropped in this order: the second uses the first one's etcd.
    gateway: Ours,
    second: KubeApiServer,
    first: KubeApiServer,
    secrets: Secrets,
    dir: TempDir,
}

impl Stage {
    fn new() -> Self {
        for peer in ["etcd", "kube-apiserver", "kubectl"] {
            announce(peer);
        }
        let dir = TempDir::new("terminate").unwrap();
        let secrets = Secrets::write(&dir, NAME);
        dir.write("audit.yaml", AUDIT).unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let params = |name: &str| {
            let mut params = KubeParams::new(address, &[NAME, SERVER_NAME]);
            params.arguments = arguments(dir.path(), name);
            params
        };
        let (here, at) = (Place::Here, |name| dir.join(name));
        let first = KubeApiServer::start(here, &at("first"), &params("first")).unwrap();
        let second = first
            .start_beside(here, &at("second"), &params("second"))
            .unwrap();
        let authorities = [first.authority_pem(), second.authority_pem()].concat();
        dir.write("cluster.crt", authorities).unwrap();
        let endpoints = [&first, &second].map(|own| json!({ "address": own.addr().to_string() }));
        let routes = json!({
            "clusters": [{ "name": CLUSTER, "endpoints": endpoints }],
            "routes": [{
                "serverNames": [NAME], "cluster": CLUSTER,
                "terminate": {
                    "certificate": { "cert": "own.crt", "key": "own.key" },
                    "clientAuthorities": "clients.crt",
                    "upstream": {
                        "authorities": "cluster.crt", "serverName": SERVER_NAME,
                        "identity": { "cert": "front.crt", "key": "front.key" },
                    },
                },
            }],
        });
        Self {
            gateway: gateway::plain(&dir, &routes),
            second,
            first,
            secrets,
            dir,
        }
    }

    /// Returns where the first server, or the gateway, listens, and the authority of its certificate.
    fn way(&self, direct: bool) -> (SocketAddr, &str) {
        match direct {
            true => (self.first.addr(), self.first.authority_pem()),
            false => (self.gateway.listener("tls"), self.secrets.serving.pem()),
        }
    }

    /// Prepares kubectl, through the gateway or straight to the first server, as a user.
    fn kubectl(&self, direct: bool, user: &User) -> Command {
        self.kubectl_trusting(direct, user, self.way(direct).1)
    }

    /// The same, with certificates of these authorities.
    fn kubectl_trusting(&self, direct: bool, user: &User, authority: &str) -> Command {
        let (addr, _) = self.way(direct);
        let name = format!("{}-{direct}", user.name());
        let ca = self.dir.write(format!("{name}.ca"), authority).unwrap();
        let user = match user {
            User::Certificate(name, group) => {
                let identity = self.secrets.clients.client(name, &[group], &[]).unwrap();
                let Identity { cert_pem, key_pem } = identity;
                let cert = self.dir.write(format!("{name}.crt"), cert_pem).unwrap();
                let key = self.dir.write(format!("{name}.key"), key_pem).unwrap();
                json!({ "client-certificate": cert, "client-key": key })
            }
            User::Token => json!({ "token": self.first.token() }),
            User::Anonymous => json!({}),
        };
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "shoot",
            "clusters": [{ "name": "shoot", "cluster": {
                "server": format!("https://{NAME}:{}", addr.port()), "certificate-authority": ca,
            } }],
            "users": [{ "name": "user", "user": user }],
            "contexts": [{ "name": "shoot", "context": { "cluster": "shoot", "user": "user" } }],
        });
        let path = self
            .dir
            .write(format!("{name}.kubeconfig"), config.to_string())
            .unwrap();
        // Clients dial by name: that is what the gateway checks.
        let mut kubectl = client("unshare");
        kubectl.args([
            "--user",
            "--map-root-user",
            "--mount",
            "--propagation",
            "private",
            "sh",
        ]);
        kubectl.args([
            "-c",
            "mount --bind \"$0\" /etc/hosts && exec kubectl \"$@\"",
        ]);
        kubectl.arg(
            self.dir
                .write("hosts", format!("127.0.0.1 {NAME}\n"))
                .unwrap(),
        );
        kubectl.arg("--kubeconfig").arg(path);
        kubectl
            .arg("--cache-dir")
            .arg(self.dir.join(format!("cache-{name}")));
        for proxy in ["http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"] {
            kubectl.env_remove(proxy);
        }
        kubectl
    }

    /// The lines of both servers' audit logs.
    fn audited(&self) -> Vec<(&'static str, Value)> {
        let mut all = Vec::new();
        for name in ["first", "second"] {
            let text = fs::read_to_string(log(self.dir.path(), name)).unwrap_or_default();
            let lines = text
                .lines()
                .filter_map(|line| serde_json::from_str(line).ok());
            all.extend(lines.map(|line| (name, line)));
        }
        all
    }

    fn target(&self) -> Target {
        let target = Target::tls(self.gateway.listener("tls"), self.secrets.serving.pem());
        target.server_name(NAME).bearer(self.first.token())
    }
}

#[derive(Clone, Copy)]
enum User {
    /// By name and group.
    Certificate(&'static str, &'static str),
    Token,
    Anonymous,
}

impl User {
    fn name(&self) -> &'static str {
        match self {
            Self::Certificate(name, _) => name,
            Self::Token => "token",
            Self::Anonymous => "anonymous",
        }
    }
}

fn arguments(dir: &Path, name: &str) -> Vec<String> {
    let path = |name: &str| dir.join(name).display().to_string();
    vec![
        format!("--client-ca-file={}", path("clients.crt")),
        format!("--requestheader-client-ca-file={}", path("front-ca.crt")),
        "--requestheader-allowed-names=system:istio-gateway".to_owned(),
        "--requestheader-username-headers=X-Remote-User".to_owned(),
        "--requestheader-group-headers=X-Remote-Group".to_owned(),
        "--requestheader-extra-headers-prefix=X-Remote-Extra-".to_owned(),
        format!("--audit-policy-file={}", path("audit.yaml")),
        format!("--audit-log-path={}", log(dir, name).display()),
    ]
}

fn log(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}.audit"))
}

const AUDIT: &str = "apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules: [{ level: Metadata }]
";

/// In one test: API servers take their time to start.
#[test]
fn kubectl_finds_what_a_direct_connection_finds() {
    let mut stage = Stage::new();
    identities(&stage);
    both_are_asked(&stage);
    large_objects_and_watches(&stage);
    roll(&mut stage);
}

/// Those in the audit log are those of a direct connection.
fn identities(stage: &Stage) {
    let mut users = Vec::new();
    for user in [
        User::Certificate("jane", "devs"),
        User::Certificate("root", "system:masters"),
        User::Token,
        User::Anonymous,
    ] {
        let mut seen = Vec::new();
        for direct in [true, false] {
            let path = format!("/api/v1/namespaces/{}-{direct}", user.name());
            // Whether it may, or there is one of that name, is no matter here. kubectl asks a person who has
            // no name.
            let said = match user {
                User::Anonymous => {
                    let (addr, authority) = stage.way(direct);
                    let answer = http::get(&Target::tls(addr, authority).server_name(NAME), &path);
                    answer.map(|answer| answer.text())
                }
                User::Certificate(..) | User::Token => {
                    command::run(stage.kubectl(direct, &user).args(["get", "--raw", &path]))
                }
            };
            let audited = wait::until_some("an audited request", LIMIT, || {
                let all = stage.audited().into_iter();
                let mut of_path = all.filter(|(_, line)| line["requestURI"] == *path);
                of_path.next().map(|(_, line)| line)
            });
            let line = audited.unwrap_or_else(|error| panic!("{path}: {error:#}; {said:?}"));
            seen.push((line["user"].clone(), line["responseStatus"]["code"].clone()));
        }
        assert_eq!(seen[0], seen[1], "{}", user.name());
        users.push(seen[1].0["username"].clone());
    }
    assert_eq!(users, ["jane", "root", "admin", "system:anonymous"]);
}

/// Requests of one connection reach both servers.
fn both_are_asked(stage: &Stage) {
    let mut connection = Connection::open(&stage.target()).unwrap();
    for _ in 0..40 {
        let answer = connection.get("/api/v1/namespaces/default").unwrap();
        assert_eq!(answer.status, 200);
    }
    let mut of_server: BTreeMap<&str, usize> = BTreeMap::new();
    for (name, line) in stage.audited() {
        if line["requestURI"] == "/api/v1/namespaces/default" && line["user"]["username"] == "admin"
        {
            *of_server.entry(name).or_default() += 1;
        }
    }
    assert_eq!(of_server.values().sum::<usize>(), 40, "{of_server:?}");
    assert!(
        of_server.values().all(|count| *count >= 10),
        "{of_server:?}"
    );
}

fn large_objects_and_watches(stage: &Stage) {
    let run = |direct, words: &[&str]| {
        let mut kubectl = stage.kubectl(direct, &User::Certificate("root", "system:masters"));
        command::run(kubectl.args(words)).unwrap_or_else(|error| panic!("{error:#}"))
    };
    let items = (0..9).map(|number| {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": format!("large-{number}") },
            "data": { "filler": number.to_string().repeat(900_000) },
        })
    });
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": items.collect::<Vec<_>>() });
    let large = stage.dir.write("large.json", list.to_string()).unwrap();
    let mut watch = Connection::open(&stage.target()).unwrap();
    let path =
        "/api/v1/namespaces/default/configmaps?watch=1&fieldSelector=metadata.name%3Dlarge-8";
    let _ = watch.get("/version").unwrap();
    let mut watch = watch.watch(path).unwrap();
    run(false, &["create", "--filename", large.to_str().unwrap()]);
    let event = watch.next_event().unwrap().unwrap();
    assert_eq!(event["object"]["metadata"]["name"], "large-8");
    let path = "/api/v1/namespaces/default/configmaps?resourceVersion=0";
    let now: Value = serde_json::from_str(&run(false, &["get", "--raw", path])).unwrap();
    let revision = now["metadata"]["resourceVersion"].as_str().unwrap();
    let path = "/api/v1/namespaces/default/configmaps";
    let path = format!("{path}?resourceVersion={revision}&resourceVersionMatch=Exact");
    let through = run(false, &["get", "--raw", &path]);
    assert!(through.len() > 8_000_000, "{} bytes", through.len());
    assert!(
        through == run(true, &["get", "--raw", &path]),
        "the lists differ"
    );
    run(false, &["delete", "configmap", "large-3"]);
}

/// No request fails while a server is rolled.
fn roll(stage: &mut Stage) {
    let (over, target) = (AtomicBool::new(false), stage.target());
    let ask = |kept: bool| {
        let (mut count, mut connection) = (0, None);
        while !over.load(Ordering::Relaxed) {
            let answer = match &mut connection {
                None if kept => connection
                    .insert(Connection::open(&target).unwrap())
                    .get("/api/v1/namespaces"),
                None => http::get(&target, "/api/v1/namespaces"),
                Some(connection) => connection.get("/api/v1/namespaces"),
            };
            let answer = answer.unwrap_or_else(|error| panic!("request {count}: {error:#}"));
            assert_eq!(answer.status, 200, "request {count}: {}", answer.text());
            count += 1;
        }
        count
    };
    let counts = std::thread::scope(|scope| {
        let kept = scope.spawn(|| ask(true));
        let fresh = scope.spawn(|| ask(false));
        struct Over<'a>(&'a AtomicBool);
        impl Drop for Over<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let ending = Over(&over);
        for _ in 0..3 {
            wait::pause(Duration::from_millis(500));
            stage.second.child().signal(Signal::TERM).unwrap();
            stage.second.child().wait_exit(LIMIT).unwrap();
            wait::pause(Duration::from_millis(500));
            stage.second.start_again(Place::Here).unwrap();
        }
        wait::pause(Duration::from_millis(500));
        drop(ending);
        [kept.join().unwrap(), fresh.join().unwrap()]
    });
    assert!(counts.iter().all(|count| *count > 20), "{counts:?}");
}

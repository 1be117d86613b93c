//! `kubectl exec`, `attach` and `port-forward` through the gateway, and upgrades to other protocols.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};

use serde_json::json;
use testkit::command;
use testkit::http::{Connection, Proxy, Target};
use testkit::kubelet::{Kubelet, pattern};
use testkit::process::{ChildGuard, Signal};
use testkit::wait;

use super::{NAME, Place, SERVER_NAME, Stage, User};
use crate::gateway::HEADER;
use crate::ours::LIMIT;
use crate::programs::{free, sha256};

const ROOT: User = User::Certificate("root", "system:masters");
const SOCKET: &str = "shoot--foo--bar--kube-apiserver-socket";

/// A stage with a node and a pod on it.
struct WithPod {
    stage: Stage,
    _kubelet: Kubelet,
}

impl WithPod {
    fn new() -> Self {
        let stage = Stage::new();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let identity = stage.secrets.serving.server(&["127.0.0.1"]).unwrap();
        let kubelet = Kubelet::start(listener, "node-0", &identity).unwrap();
        stage
            .first
            .create_node(Place::Here, "node-0", kubelet.addr())
            .unwrap();
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "pod" },
            "spec": { "nodeName": "node-0", "containers": [{ "name": "c", "image": "none" }] },
        });
        let pods = "/api/v1/namespaces/default/pods";
        let mut connection = Connection::open(&stage.first.target()).unwrap();
        wait::until("the pod", LIMIT, || {
            let created = connection.request("POST", pods, Some(&pod.to_string()));
            [201, 409].contains(&created.unwrap().status)
        })
        .unwrap();
        let running = json!({ "status": { "phase": "Running" } }).to_string();
        let status = format!("{pods}/pod/status");
        let patched = connection.request("PATCH", &status, Some(&running));
        assert_eq!(patched.unwrap().status, 200);
        Self {
            stage,
            _kubelet: kubelet,
        }
    }

    fn kubectl(&self, (direct, websocket): (bool, bool), words: &[&str]) -> Command {
        let mut kubectl = self.stage.kubectl(direct, &ROOT);
        let websocket = websocket.to_string();
        kubectl.env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", &websocket);
        kubectl.env("KUBECTL_PORT_FORWARD_WEBSOCKETS", &websocket);
        kubectl.args(words);
        kubectl
    }
}

/// In one test: API servers take their time to start.
#[test]
fn streams_arrive_as_over_a_direct_connection() {
    let own = WithPod::new();
    // kubectl speaks WebSocket first, unless it is told not to.
    for websocket in [false, true] {
        for direct in [true, false] {
            exec(&own, direct, websocket);
            attach(&own, direct, websocket);
            forward(&own, direct, websocket);
        }
    }
    upgrades_are_audited(&own.stage);
    other_protocols(&own.stage);
    within_connect(&own.stage);
    // Those to the servers are kept for a while.
    let active = || own.stage.gateway.active();
    wait::until("every connection to end", LIMIT, || active() == 0.0).unwrap();
}

/// Output alone, then both ways: what `kubectl cp` does.
fn exec(own: &WithPod, direct: bool, websocket: bool) {
    let bytes = 20_000_000;
    let sent = own.stage.dir.write("sent", pattern(bytes)).unwrap();
    for (input, words) in [
        (false, vec!["exec", "pod", "--", "send", "20000000"]),
        (true, vec!["exec", "-i", "pod", "--", "cat"]),
    ] {
        let got = own.stage.dir.join("got");
        let mut kubectl = own.kubectl((direct, websocket), &words);
        if input {
            kubectl.stdin(File::open(&sent).unwrap());
        }
        kubectl.stdout(File::create(&got).unwrap());
        kubectl.stderr(Stdio::piped());
        let output = kubectl.spawn().unwrap().wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.success(),
            "{direct} {websocket} {words:?}: {said}"
        );
        assert_eq!(
            sha256(&got),
            sha256(&sent),
            "{direct} {websocket} {words:?}"
        );
    }
}

fn attach(own: &WithPod, direct: bool, websocket: bool) {
    let mut kubectl = own.kubectl((direct, websocket), &["attach", "-i", "pod"]);
    kubectl.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = kubectl.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut output = child.stdout.take().unwrap();
    for line in ["one\n", "two\n"] {
        input.write_all(line.as_bytes()).unwrap();
        let mut heard = vec![0; line.len()];
        output.read_exact(&mut heard).unwrap();
        assert_eq!(heard, line.as_bytes());
    }
    drop(input);
    assert!(child.wait().unwrap().success());
}

/// Several connections at once over one upgraded one.
fn forward(own: &WithPod, direct: bool, websocket: bool) {
    let address = free("127.0.0.1");
    let ports = format!("{}:80", address.port());
    let kubectl = own.kubectl((direct, websocket), &["port-forward", "pod/pod", &ports]);
    let log = own
        .stage
        .dir
        .join(format!("forward-{direct}-{websocket}.log"));
    let mut child = ChildGuard::spawn("port-forward", &kubectl, &log).unwrap();
    child.wait_log("Forwarding from", LIMIT).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut stream = TcpStream::connect(address).unwrap();
                stream.set_read_timeout(Some(LIMIT)).unwrap();
                let sent = pattern(1_000_000);
                let mut writing = stream.try_clone().unwrap();
                let bytes = sent.clone();
                scope.spawn(move || writing.write_all(&bytes).unwrap());
                let mut heard = vec![0; sent.len()];
                stream.read_exact(&mut heard).unwrap();
                assert!(heard == sent);
            });
        }
    });
    child.signal(Signal::TERM).unwrap();
    child.wait_exit(LIMIT).unwrap();
}

/// Who upgrades is who the certificate names; WebSocket begins with GET, SPDY with POST, and neither fell back.
fn upgrades_are_audited(stage: &Stage) {
    let ended = || {
        let all = stage.audited().into_iter().map(|(_, line)| line);
        let ended = all.filter(|line| {
            let path = line["requestURI"].as_str().unwrap_or_default();
            let is_exec = path.starts_with("/api/v1/namespaces/default/pods/pod/exec?");
            is_exec && line["stage"] == "ResponseComplete"
        });
        ended.collect::<Vec<_>>()
    };
    wait::until("the audited upgrades", LIMIT, || ended().len() >= 8).unwrap();
    let ended = ended();
    let by = |verb: &str| ended.iter().filter(|line| line["verb"] == verb).count();
    assert_eq!((by("create"), by("get")), (4, 4), "{ended:?}");
    for line in ended {
        assert_eq!(line["user"]["username"], "root", "{line}");
    }
}

/// Bytes of any kind, to a node that echoes them.
fn other_protocols(stage: &Stage) {
    for protocol in ["websocket", "SPDY/3.1"] {
        let connection = Connection::open(&stage.target()).unwrap();
        let path = "/api/v1/nodes/node-0/proxy/upgrade";
        let mut upgraded = connection.upgrade(path, protocol).unwrap();
        for length in [1, 100_000, 3, 64 << 10] {
            let bytes = pattern(length);
            assert!(upgraded.exchange(&bytes).unwrap() == bytes, "{length}");
        }
    }
}

/// As today's node proxies come: CONNECT with a header, then TLS to whatever name.
fn within_connect(stage: &Stage) {
    let routes = std::fs::read_to_string(stage.dir.join("routes.yaml")).unwrap();
    let mut routes: serde_json::Value = serde_json::from_str(&routes).unwrap();
    let mut route = routes["routes"][0].clone();
    route.as_object_mut().unwrap().remove("serverNames");
    route["connectDestinations"] = json!([SOCKET]);
    routes["routes"].as_array_mut().unwrap().push(route);
    let generation = || stage.gateway.metric("rhizome_snapshot_generation", &[]);
    let before = generation();
    stage
        .dir
        .replace("routes.yaml", routes.to_string())
        .unwrap();
    wait::until("the route", LIMIT, || generation() > before).unwrap();
    for (name, server_name) in [("named", NAME), ("another name", SERVER_NAME)] {
        let authority = format!(
            "{}{}",
            stage.secrets.serving.pem(),
            stage.first.authority_pem()
        );
        let target = Target::tls(stage.gateway.listener("node"), &authority);
        let target = target.bearer(stage.first.token());
        let target = target.proxy(Proxy::Connect {
            authority: "kubernetes.default.svc.cluster.local:443".to_owned(),
            headers: vec![(HEADER.to_owned(), SOCKET.to_owned())],
        });
        let mut connection = match server_name {
            NAME => Connection::open(&target.server_name(NAME)).unwrap(),
            // The certificate is the shoot's own, whatever was asked for.
            other => {
                assert!(
                    Connection::open(&target.server_name(other)).is_err(),
                    "{name}"
                );
                continue;
            }
        };
        let answer = connection.get("/api/v1/nodes/node-0").unwrap();
        assert_eq!(answer.status, 200, "{name}: {}", answer.text());
        let path = "/api/v1/nodes/node-0/proxy/upgrade";
        let mut upgraded = connection.upgrade(path, "websocket").unwrap();
        assert_eq!(upgraded.exchange(b"ping").unwrap(), b"ping");
    }
    let answered = command::run(stage.kubectl(false, &ROOT).args(["get", "nodes"]));
    assert!(answered.unwrap().contains("node-0"));
}

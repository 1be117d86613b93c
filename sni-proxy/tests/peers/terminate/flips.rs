//! A route that terminates and is passed through in turns, while kubectl, curl and watches use two real API servers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;
use testkit::command;
use testkit::http::{self, Connection, Target, Watch};
use testkit::wait;

use super::{NAME, Stage, User};
use crate::ours::LIMIT;
use crate::programs::{announce, client};

const PATH: &str = "/api/v1/namespaces/default";
/// Requests that curl sends over one connection, if it is let to.
const REQUESTS: usize = 50;

#[test]
fn clients_fail_no_request_while_their_route_changes() {
    announce("curl");
    let stage = Stage::new();
    let file = stage.dir.join("routes.yaml");
    let terminating = std::fs::read_to_string(&file).unwrap();
    let mut through: Value = serde_json::from_str(&terminating).unwrap();
    through["routes"][0]
        .as_object_mut()
        .unwrap()
        .remove("terminate");
    let through = through.to_string();
    // Who terminates shows another certificate.
    let own = stage.secrets.serving.pem();
    let authorities = [
        own,
        stage.first.authority_pem(),
        stage.second.authority_pem(),
    ]
    .concat();
    let target = Target::tls(stage.gateway.listener("tls"), &authorities);
    let target = target.server_name(NAME).bearer(stage.first.token());
    let mut watches: Vec<_> = (0..20).map(|_| watch(&target)).collect();
    let over = AtomicBool::new(false);
    let until_over = |ask: &dyn Fn() -> usize| {
        let mut count = 0;
        while !over.load(Ordering::Relaxed) {
            count += ask();
        }
        count
    };
    let by_kubectl = || {
        let root = User::Certificate("root", "system:masters");
        let mut kubectl = stage.kubectl_trusting(false, &root, &authorities);
        command::run(kubectl.args(["get", "--raw", PATH]))
            .unwrap_or_else(|error| panic!("{error:#}"));
        1
    };
    let by_curl = |protocol: &str| {
        let (addr, _) = stage.way(false);
        let mut curl = client("curl");
        curl.args(["--silent", "--show-error", "--write-out", "%{http_code}\n"]);
        // Two authorities have one name here, of which OpenSSL takes the first; kubectl checks certificates.
        curl.args(["--noproxy", "*", protocol, "--insecure"]);
        curl.args([
            "--header",
            &format!("Authorization: Bearer {}", stage.first.token()),
        ]);
        curl.args([
            "--resolve",
            &format!("{NAME}:{}:{}", addr.port(), addr.ip()),
        ]);
        for _ in 0..REQUESTS {
            let url = format!("https://{NAME}:{}{PATH}", addr.port());
            curl.args(["--output", "/dev/null", &url]);
        }
        let said = command::run(&mut curl).unwrap_or_else(|error| panic!("{protocol}: {error:#}"));
        assert!(said.lines().all(|code| code == "200"), "{protocol}: {said}");
        said.lines().count()
    };
    let by_fresh = || {
        let answer = http::get(&target, PATH).unwrap_or_else(|error| panic!("{error:#}"));
        assert_eq!(answer.status, 200, "{}", answer.text());
        1
    };
    struct Over<'a>(&'a AtomicBool);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let counts: Vec<usize> = std::thread::scope(|scope| {
        let asking = [
            scope.spawn(|| until_over(&by_kubectl)),
            scope.spawn(|| until_over(&|| by_curl("--http2"))),
            scope.spawn(|| until_over(&|| by_curl("--http1.1"))),
            scope.spawn(|| until_over(&by_fresh)),
        ];
        let ending = Over(&over);
        for routes in [&through, &terminating].repeat(8) {
            wait::pause(Duration::from_millis(400));
            let generation = || stage.gateway.metric("rhizome_snapshot_generation", &[]);
            let before = generation();
            stage.dir.replace("routes.yaml", routes).unwrap();
            wait::until("the routes", LIMIT, || generation() > before).unwrap();
        }
        drop(ending);
        asking.into_iter().map(|own| own.join().unwrap()).collect()
    });
    println!("requests: {counts:?}");
    assert!(counts.iter().all(|count| *count > 10), "{counts:?}");
    // Those that were begun before go on, whichever way.
    let object = serde_json::json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "watched" },
    });
    let made = Connection::open(&target).unwrap();
    let answer = { made }.request("POST", MAPS, Some(&object.to_string()));
    assert_eq!(answer.unwrap().status, 201);
    for (number, watch) in watches.iter_mut().enumerate() {
        let event = watch
            .next_event()
            .unwrap_or_else(|error| panic!("watch {number}: {error:#}"));
        assert!(event.is_some(), "watch {number} ended");
    }
}

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn watch(target: &Target) -> Watch {
    let path = format!("{MAPS}?watch=1&fieldSelector=metadata.name%3Dwatched");
    Connection::open(target).unwrap().watch(&path).unwrap()
}

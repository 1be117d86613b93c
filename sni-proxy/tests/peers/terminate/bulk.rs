//! Much through the gateway: large objects and a list of 50 MB, and a thousand watches and many writes while a server
//! is rolled.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use testkit::command;
use testkit::http::{Connection, Target, Watch};
use testkit::process::Signal;
use testkit::wait;

use super::{NAME, Place, Stage, User};
use crate::ours::LIMIT;
use crate::programs::{announce, client};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const WATCHES: usize = 1_000;

/// In one test: API servers take their time to start.
#[test]
fn much_arrives_as_over_a_direct_connection() {
    announce("curl");
    let mut stage = Stage::new();
    large_objects(&stage);
    bodies_that_wait(&stage);
    let watches = watches(&stage);
    writes_while_rolled(&mut stage);
    watches_end_as_directly(&mut stage, watches);
}

fn large_objects(stage: &Stage) {
    let mut connection = Connection::open(&stage.target()).unwrap();
    let object = |name: &str, byte: u8| {
        let filler = char::from(b'a' + byte % 26).to_string().repeat(1_000_000);
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name },
            "data": { "filler": filler },
        })
        .to_string()
    };
    for number in 0..50 {
        let body = object(&format!("large-{number}"), number);
        let answer = connection.request("POST", MAPS, Some(&body)).unwrap();
        assert_eq!(answer.status, 201, "{}", answer.text());
    }
    let file = stage
        .dir
        .write("applied.json", object("applied", 25))
        .unwrap();
    let root = User::Certificate("root", "system:masters");
    let mut kubectl = stage.kubectl(false, &root);
    kubectl
        .args(["apply", "--server-side", "--filename"])
        .arg(file);
    command::run(&mut kubectl).unwrap();
    let now = connection.get("/api/v1/namespaces/default/configmaps?limit=1");
    let now: Value = now.unwrap().json().unwrap();
    let revision = now["metadata"]["resourceVersion"].as_str().unwrap();
    let path = format!("{MAPS}?resourceVersion={revision}&resourceVersionMatch=Exact");
    let target = stage.target().timeout(LIMIT * 2);
    let through = Connection::open(&target).unwrap().get(&path).unwrap();
    let direct = Connection::open(&stage.first.target().timeout(LIMIT * 2));
    let direct = direct.unwrap().get(&path).unwrap();
    assert_eq!((through.status, direct.status), (200, 200));
    assert!(through.body.len() > 50_000_000, "{}", through.body.len());
    assert!(through.body == direct.body, "the lists differ");
}

/// Both protocols; the server says when it wants the body.
fn bodies_that_wait(stage: &Stage) {
    for (number, protocol) in ["--http1.1", "--http2"].into_iter().enumerate() {
        let (addr, authority) = stage.way(false);
        let ca = stage.dir.write("curl.ca", authority).unwrap();
        let body = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": format!("waited-{number}") },
            "data": { "filler": "w".repeat(1_000_000) },
        });
        let body = stage.dir.write("waited.json", body.to_string()).unwrap();
        let mut curl = client("curl");
        curl.args(["--silent", "--show-error", "--output", "/dev/null"]);
        curl.args(["--write-out", "%{http_code}", "--noproxy", "*", protocol]);
        curl.args(["--header", "Expect: 100-continue"]);
        curl.args(["--header", "Content-Type: application/json"]);
        curl.arg("--header");
        curl.arg(format!("Authorization: Bearer {}", stage.first.token()));
        curl.arg("--cacert").arg(ca);
        curl.arg("--resolve")
            .arg(format!("{NAME}:{}:{}", addr.port(), addr.ip()));
        curl.arg("--data-binary")
            .arg(format!("@{}", body.display()));
        curl.arg(format!("https://{NAME}:{}{MAPS}", addr.port()));
        let said = command::run(&mut curl).unwrap_or_else(|error| panic!("{error:#}"));
        assert_eq!(said.trim(), "201", "{protocol}");
    }
}

fn watch(target: &Target) -> Watch {
    let path = format!("{MAPS}?watch=1&fieldSelector=metadata.name%3Dwatched");
    Connection::open(target).unwrap().watch(&path).unwrap()
}

fn change(stage: &Stage, method: &str, value: usize) {
    let path = match method {
        "POST" => MAPS.to_owned(),
        _ => format!("{MAPS}/watched"),
    };
    let object = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "watched" },
        "data": { "value": value.to_string() },
    });
    let mut connection = Connection::open(&stage.target()).unwrap();
    let answer = connection.request(method, &path, Some(&object.to_string()));
    let answer = answer.unwrap();
    assert!(answer.status < 300, "{}", answer.text());
}

/// Each of a thousand sees each of the events.
fn watches(stage: &Stage) -> Vec<Watch> {
    let target = stage.target();
    let mut watches: Vec<_> = (0..WATCHES).map(|_| watch(&target)).collect();
    for value in 0..3 {
        change(stage, if value == 0 { "POST" } else { "PUT" }, value);
        for (number, watch) in watches.iter_mut().enumerate() {
            let event = watch.next_event();
            let event = event.unwrap_or_else(|error| panic!("watch {number}: {error:#}"));
            let event = event.unwrap_or_else(|| panic!("watch {number} ended"));
            assert_eq!(
                event["object"]["data"]["value"],
                value.to_string(),
                "watch {number}"
            );
        }
    }
    watches
}

/// No write fails while the second server goes and comes again, over kept connections and fresh ones.
fn writes_while_rolled(stage: &mut Stage) {
    let (over, target) = (AtomicBool::new(false), stage.target());
    let write = |name: &str, kept: bool| {
        let mut connection = Connection::open(&target).unwrap();
        let mut count = 0_u32;
        while !over.load(Ordering::Relaxed) {
            if !kept {
                connection = Connection::open(&target).unwrap();
            }
            let (method, path) = match count {
                0 => ("POST", MAPS.to_owned()),
                _ => ("PUT", format!("{MAPS}/{name}")),
            };
            let object = json!({
                "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name },
                "data": { "value": count.to_string() },
            });
            let answer = connection.request(method, &path, Some(&object.to_string()));
            let answer = answer.unwrap_or_else(|error| panic!("write {count}: {error:#}"));
            assert!(
                answer.status < 300,
                "write {count}: {} {}",
                answer.status,
                answer.text()
            );
            count += 1;
        }
        count
    };
    struct Over<'a>(&'a AtomicBool);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let counts: Vec<u32> = std::thread::scope(|scope| {
        let write = &write;
        let names = ["a", "b", "c", "d", "e", "f"];
        let writing = names.map(|name| scope.spawn(move || write(name, name < "d")));
        let ending = Over(&over);
        for _ in 0..2 {
            wait::pause(Duration::from_millis(500));
            stage.second.child().signal(Signal::TERM).unwrap();
            stage.second.child().wait_exit(LIMIT * 3).unwrap();
            stage.second.start_again(Place::Here).unwrap();
        }
        drop(ending);
        writing.into_iter().map(|own| own.join().unwrap()).collect()
    });
    assert!(counts.iter().all(|count| *count > 20), "{counts:?}");
}

/// How a watch goes on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Next {
    Event,
    /// With the end of its answer.
    Ended,
    /// Without it, as a process leaves it that ends.
    BrokenOff,
}

fn next(watch: &mut Watch) -> Next {
    match watch.next_event() {
        Ok(Some(_)) => Next::Event,
        Ok(None) => Next::Ended,
        Err(_) => Next::BrokenOff,
    }
}

/// Those of the server that went have ended, in the way that one does without a gateway; the others go on.
fn watches_end_as_directly(stage: &mut Stage, watches: Vec<Watch>) {
    change(stage, "PUT", 77);
    let second = stage.second.target();
    let mut direct = watch(&second);
    assert_eq!(next(&mut direct), Next::Event);
    stage.second.child().signal(Signal::TERM).unwrap();
    let end = next(&mut direct);
    assert_ne!(end, Next::Event);
    let all: Vec<_> = { watches }.iter_mut().map(next).collect();
    let ended = all.iter().filter(|own| **own == end).count();
    let living = all.iter().filter(|own| **own == Next::Event).count();
    assert_eq!(ended + living, WATCHES, "{end:?} {ended} {living}");
    assert!(
        ended > WATCHES / 10 && living > WATCHES / 10,
        "{ended} {living}"
    );
    // One whose time is over has its end.
    let path = format!("{MAPS}?watch=1&timeoutSeconds=1&resourceVersion=0&limit=1");
    for target in [stage.first.target(), stage.target()] {
        let mut timed = Connection::open(&target).unwrap().watch(&path).unwrap();
        let mut last = Next::Event;
        while last == Next::Event {
            last = next(&mut timed);
        }
        assert_eq!(last, Next::Ended);
    }
}

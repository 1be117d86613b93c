//! The API server stands still, dies, and forgets: policies stay, and what is due is done after.

use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::netns::Place;
use testkit::process::Signal;
use testkit::wait;

use crate::api::{Api, P, Policies, pod, pods, service, services, versions};
use crate::child::Child;
use crate::definitions::{ISTIO_GATEWAY, VIRTUAL_SERVICE, create, install};
use crate::stage::{SERVICES, Stage};

/// How long it stands still.
const STILL: Duration = Duration::from_secs(30);

/// By when what has happened is followed once the API server is back: the pauses between attempts
/// are at most 4 s, and the lease is looked at each 2 s.
const CAUGHT_UP: Duration = Duration::from_secs(10);

fn same(before: &Policies, after: &Policies) {
    let (old, new) = (versions(before), versions(after));
    for (key, version) in &old {
        assert_eq!(new.get(key), Some(version), "{key}");
    }
}

fn fill(api: &mut Api) -> Policies {
    api.namespace("a", &json!({}));
    for number in 0..20 {
        api.create(&services("a"), &service(&format!("s-{number}"), 80));
    }
    api.wait_policies("the policies", |found| found.len() == 40)
}

#[test]
fn stalled_api_server_changes_nothing() {
    let mut stage = Stage::new("still");
    let mut api = stage.api();
    let controller = stage.replica("controller", SERVICES);
    controller.wait_ready();
    let before = fill(&mut api);
    stage.server.child().signal(Signal::STOP).unwrap();
    let back = wait::Deadline::after(STILL);
    wait::until("the leader to give up", STILL, || !controller.is_leading()).unwrap();
    while !back.passed() {
        assert!(controller.is_ready(), "it knows what it knew");
        wait::pause(Duration::from_millis(500).min(back.left()));
    }
    stage.server.child().signal(Signal::CONT).unwrap();
    let mut api = stage.api();
    let egress = "/apis/networking.k8s.io/v1/namespaces/a/networkpolicies/egress-to-s-1-tcp-80";
    api.create(&services("a"), &service("after", 80));
    api.delete(&format!("{}/s-0", services("a")));
    api.delete(egress);
    let after = api.wait_policies_for(CAUGHT_UP, "changes right after", |found| {
        found.contains_key("a/egress-to-after-tcp-80")
            && found.contains_key("a/ingress-to-after-tcp-80")
            && found.contains_key("a/egress-to-s-1-tcp-80")
            && found.len() == 40
    });
    let mut kept = before;
    kept.retain(|key, _| !key.contains("-s-0-") && key != "a/egress-to-s-1-tcp-80");
    same(&kept, &after);
    assert!(controller.is_ready());
}

/// As `base64` writes it, which is how etcd's gateway takes keys.
fn base64(text: &str) -> String {
    let script = format!("printf %s '{text}' | base64 -w0");
    testkit::command::run(Command::new("sh").args(["-c", &script])).unwrap()
}

/// Deletes a Service in etcd behind the API server, then compacts the history.
fn forget(stage: &Stage, name: &str) {
    let key = base64(&format!("/registry/services/specs/a/{name}"));
    let gone = stage.etcd("/v3/kv/deleterange", &json!({ "key": key }));
    assert_eq!(gone["deleted"], "1", "{gone}");
    let revision = &gone["header"]["revision"];
    let all = json!({ "revision": revision, "physical": true });
    stage.etcd("/v3/kv/compaction", &all);
}

/// Policies that come from a kind which the API server learns again only after its start.
fn exposed(api: &mut Api) -> Policies {
    install(api, ISTIO_GATEWAY);
    install(api, VIRTUAL_SERVICE);
    api.namespace("istio-ingress", &json!({}));
    api.create(
        &pods("istio-ingress"),
        &pod("gateway-0", &json!({ "istio": "ingressgateway" })),
    );
    create(
        api,
        ISTIO_GATEWAY,
        ("a", "g"),
        &json!({ "selector": { "istio": "ingressgateway" }, "servers": [] }),
    );
    let route =
        json!([{ "destination": { "host": "s-1.a.svc.cluster.local", "port": { "number": 80 } } }]);
    create(
        api,
        VIRTUAL_SERVICE,
        ("a", "v"),
        &json!({
            "hosts": ["s"], "gateways": ["g"], "tcp": [{ "route": route }],
        }),
    );
    api.wait_policies("policies of the VirtualService", |found| found.len() == 42)
}

#[test]
fn restarted_api_server_is_relisted() {
    let mut stage = Stage::new("compacted");
    let mut api = stage.api();
    let controller = stage.replica("controller", SERVICES);
    controller.wait_ready();
    fill(&mut api);
    let before = exposed(&mut api);
    let errors = |controller: &Child| controller.value("rhizome_netpol_watch_errors_total", &[]);
    let interrupted = errors(&controller);
    stage.server.child().kill().unwrap();
    forget(&stage, "s-0");
    wait::until("the watches to be cut", STILL, || {
        errors(&controller) > interrupted
    })
    .unwrap();
    assert!(controller.is_ready());
    stage.server.start_again(Place::Here).unwrap();
    let mut api = stage.api();
    api.create(&services("a"), &service("after", 80));
    let gone = |key: &str| key.contains("-s-0-");
    // Only a new list shows that the Service is gone: its event is lost.
    let after = api.wait_policies_for(CAUGHT_UP, "what has happened to be followed", |found| {
        found.contains_key("a/egress-to-after-tcp-80")
            && found.contains_key("a/ingress-to-after-tcp-80")
            && !found.keys().any(|key| gone(key))
    });
    let mut kept = before;
    kept.retain(|key, _| !gone(key));
    same(&kept, &after);
    assert_eq!(after.len(), kept.len() + 2);
    assert!(controller.is_ready());
    // And nothing else was deleted on the way, to be created again in another version: not what
    // came from kinds that an API server does not know in its first moments. Requests are not
    // counted: a list of policies that is answered after a delete and older than it has it asked
    // for once more.
    let settled = settled(&mut api, &controller);
    same(&kept, &settled);
    assert_eq!(settled.len(), kept.len() + 3);
}

/// Returns the policies once nothing waits, one look at what is served later.
fn settled(api: &mut Api, controller: &Child) -> Policies {
    let listed = |snapshot: &Value| snapshot["waiting"] == 0 && snapshot["synced"] == true;
    wait::until("nothing to wait", STILL, || {
        listed(&controller.admin_json("/snapshot"))
    })
    .unwrap();
    api.annotate(
        "a",
        "after",
        &json!({ format!("{P}/from-world-to-ports"): "[]" }),
    );
    api.wait_policies("the last change", |found| {
        found.contains_key("a/ingress-to-after-from-world")
    })
}

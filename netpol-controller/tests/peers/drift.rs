//! Policies that others change, policies no longer wanted, and restarts with nothing to do.

use std::thread;
use std::time::Duration;

use serde_json::json;
use testkit::wait::{self, Deadline};

use crate::api::{Api, P, policies_of, service, services, versions};
use crate::child::LIMIT;
use crate::stage::{SERVICES, Stage};

const POLICY: &str = "a/ingress-to-s-tcp-80";

/// How long another writer fights with the controller about a policy.
const FIGHT: Duration = Duration::from_secs(3);

fn path(name: &str) -> String {
    format!("{}/{name}", policies_of("a"))
}

fn edited_and_deleted_ones_are_put_back(api: &mut Api) {
    let good = api.policies();
    // Its specification is edited, a label and an annotation are put there.
    let change = json!({
        "metadata": { "labels": { "mine": "1" }, "annotations": { "note": "keep" } },
        "spec": { "ingress": [], "podSelector": { "matchLabels": null } },
    });
    api.patch(&path("ingress-to-s-tcp-80"), &change);
    let put_back = api.wait_policies("the edited one to be put back", |found| {
        found[POLICY]["spec"] == good[POLICY]["spec"]
    });
    let metadata = &put_back[POLICY]["metadata"];
    assert_eq!(metadata["labels"]["mine"], "1");
    assert_eq!(metadata["annotations"]["note"], "keep");
    // The owner labels are removed, and the description.
    let owner = [
        format!("{P}/service-name"),
        format!("{P}/service-namespace"),
    ];
    let change = json!({ "metadata": {
        "labels": { owner[0].clone(): null, owner[1].clone(): null },
        "annotations": { "gardener.cloud/description": "nonsense" },
    } });
    api.patch(&path("ingress-to-s-tcp-80"), &change);
    let put_back = api.wait_policies("its labels to be put back", |found| {
        found[POLICY]["metadata"]["labels"][&owner[0]] == "s"
    });
    let metadata = &put_back[POLICY]["metadata"];
    assert_eq!(metadata["labels"]["mine"], "1");
    let description = &good[POLICY]["metadata"]["annotations"]["gardener.cloud/description"];
    assert_eq!(
        &metadata["annotations"]["gardener.cloud/description"],
        description
    );
    let before = &put_back["a/egress-to-s-tcp-80"]["metadata"]["uid"];
    api.delete(&path("egress-to-s-tcp-80"));
    api.wait_policies("the deleted one to be put back", |found| {
        let fresh = found.get("a/egress-to-s-tcp-80");
        fresh.is_some_and(|own| &own["metadata"]["uid"] != before)
    });
}

/// A writer that changes a policy as fast as it can, and never wins.
fn a_fight_ends_right(stage: &Stage, api: &mut Api) {
    let good = api.policies();
    let mut other = stage.api();
    let fighter = thread::spawn(move || {
        let (end, mut rounds) = (Deadline::after(FIGHT), 0);
        while !end.passed() {
            rounds += 1;
            let change = json!({
                "metadata": { "annotations": { "round": rounds.to_string() } },
                "spec": { "ingress": [{ "ports": [{ "port": rounds }] }] },
            });
            other.patch(&path("ingress-to-s-tcp-80"), &change);
        }
        rounds
    });
    let rounds: u32 = fighter.join().unwrap();
    assert!(rounds > 20, "{rounds}");
    let after = api.wait_policies("it to end right", |found| {
        found[POLICY]["spec"] == good[POLICY]["spec"]
    });
    let last = &after[POLICY]["metadata"]["annotations"]["round"];
    assert_eq!(last, &json!(rounds.to_string()), "what is his stays");
    assert_eq!(after.len(), good.len());
}

#[test]
fn drift_is_reverted_and_foreign_labels_stay() {
    let stage = Stage::new("drift");
    let mut api = stage.api();
    api.namespace("a", &json!({}));
    api.create(&services("a"), &service("s", 80));
    let foreign = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "name": "foreign" }, "spec": { "podSelector": {} },
    });
    api.create(&policies_of("a"), &foreign);
    let controller = stage.controller("controller", SERVICES);
    api.wait_policies("the policies", |found| found.len() == 3);
    edited_and_deleted_ones_are_put_back(&mut api);
    a_fight_ends_right(&stage, &mut api);
    assert_eq!(
        controller.value("rhizome_netpol_write_errors_total", &[("verb", "delete")]),
        0.0
    );
    assert!(api.policies().contains_key("a/foreign"));
}

#[test]
fn a_restart_writes_what_is_due_and_nothing_else() {
    let stage = Stage::new("restart");
    let mut api = stage.api();
    for name in ["a", "b"] {
        api.namespace(name, &json!({}));
    }
    // Everything whose form the API server might change, and read back differently.
    let mut rich = service("rich", 80);
    rich["spec"]["ports"] = json!([
        { "name": "u", "port": 53, "protocol": "UDP" },
        { "name": "s", "port": 9, "protocol": "SCTP", "targetPort": "named" },
        { "name": "d", "port": 8080, "targetPort": "http" },
    ]);
    rich["metadata"]["annotations"] = json!({
        format!("{P}/namespace-selectors"): "[{}]",
        format!("{P}/from-world-to-ports"): r#"[{}, {"port": "1"}, {"protocol": "UDP"}]"#,
        format!("{P}/from-x-allowed-ports"): r#"[{"port":"7"},{"port":"named","protocol":"UDP"}]"#,
    });
    api.create(&services("a"), &rich);
    let mut all = service("all", 80);
    all["metadata"]["annotations"] = json!({ format!("{P}/from-world-to-ports"): "[]" });
    api.create(&services("a"), &all);
    for name in ["gone", "kept"] {
        api.create(&services("b"), &service(name, 80));
    }
    let wanted = stage.dry_run(SERVICES);
    let wanted = wanted.matches("# create NetworkPolicy ").count();
    assert!(wanted > 50, "{wanted}");
    let mut controller = stage.controller("controller", SERVICES);
    api.wait_policies("what the dry run told", |found| found.len() == wanted);
    controller.terminate();
    nothing_to_do(&stage, &mut api);
    the_rest_is_due(&stage, &mut api);
}

fn nothing_to_do(stage: &Stage, api: &mut Api) {
    let before = api.policies();
    let text = stage.dry_run(SERVICES);
    assert_eq!(
        text,
        "# 0 to create, 0 to update, 0 to delete; nothing was written\n"
    );
    let mut controller = stage.controller("again", SERVICES);
    let reconciled = || controller.admin_json("/snapshot");
    wait::until("the queue to be empty", LIMIT, || {
        reconciled()["waiting"] == 0
    })
    .unwrap();
    // One Service that comes now has been planned after all that were there.
    api.create(&services("b"), &service("last", 80));
    let after = api.wait_policies("the last Service's", |found| {
        found.contains_key("b/egress-to-last-tcp-80")
            && found.contains_key("b/ingress-to-last-tcp-80")
    });
    let creates = [("verb", "create"), ("reason", "absent")];
    wait::until("its writes to be counted", LIMIT, || {
        controller.value("rhizome_netpol_writes_total", &creates) == 2.0
    })
    .unwrap();
    assert_eq!(controller.writes(), 2.0);
    let (old, new) = (versions(&before), versions(&after));
    for (key, version) in &old {
        assert_eq!(new.get(key), Some(version), "{key}");
    }
    controller.terminate();
}

/// What has happened while no controller was there.
fn the_rest_is_due(stage: &Stage, api: &mut Api) {
    api.delete(&format!("{}/gone", services("b")));
    api.delete(&format!("{}/egress-to-kept-tcp-80", policies_of("b")));
    api.patch(
        &format!("{}/ingress-to-kept-tcp-80", policies_of("b")),
        &json!({
            "metadata": { "annotations": { "note": "keep" } }, "spec": { "podSelector": { "matchLabels": null } },
        }),
    );
    let before = api.policies();
    let text = stage.dry_run(SERVICES);
    for part in [
        "# create NetworkPolicy b/egress-to-kept-tcp-80\n",
        "# update NetworkPolicy b/ingress-to-kept-tcp-80\n",
        "# delete NetworkPolicy b/ingress-to-gone-tcp-80\n",
        "# delete NetworkPolicy b/egress-to-gone-tcp-80\n",
        "+    matchLabels:\n+      app: kept\n",
        "# 1 to create, 1 to update, 2 to delete; nothing was written\n",
    ] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    assert!(!text.contains("-    note"), "{text}");
    assert_eq!(
        versions(&api.policies()),
        versions(&before),
        "nothing was written"
    );
    let controller = stage.controller("third", SERVICES);
    let after = api.wait_policies("orphans to go and the rest to be put back", |found| {
        !found.keys().any(|key| key.contains("gone"))
            && found.contains_key("b/egress-to-kept-tcp-80")
            && found["b/ingress-to-kept-tcp-80"]["spec"]["podSelector"] != json!({})
    });
    let note = &after["b/ingress-to-kept-tcp-80"]["metadata"]["annotations"]["note"];
    assert_eq!(note, "keep");
    for (verb, count) in [("create", 1.0), ("update", 1.0), ("delete", 2.0)] {
        wait::until(verb, LIMIT, || {
            controller.value("rhizome_netpol_writes_total", &[("verb", verb)]) == count
        })
        .unwrap();
    }
    assert_eq!(controller.writes(), 4.0);
}

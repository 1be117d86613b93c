//! Whether what the controller may do is what it does: its rules on one side, and on the other what the
//! API server wrote down of its requests.

use std::collections::BTreeSet;

use deploy::Objects;
use serde_json::{Value, json};
use testkit::wait;

use crate::api::{Api, LIMIT};

/// Group, resource and verb.
type Right = (String, String, String);

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Returns what the rules of a manifest's roles allow.
fn granted(controller: &Objects) -> BTreeSet<Right> {
    let roles = controller
        .of_kind("ClusterRole")
        .chain(controller.of_kind("Role"));
    let mut all = BTreeSet::new();
    for rule in roles.flat_map(|role| role["rules"].as_array().unwrap()) {
        let words = |key: &str| {
            rule[key]
                .as_array()
                .unwrap()
                .iter()
                .map(text)
                .collect::<Vec<_>>()
        };
        for group in words("apiGroups") {
            for resource in words("resources") {
                let own = |verb| (group.clone(), resource.clone(), verb);
                all.extend(words("verbs").into_iter().map(own));
            }
        }
    }
    all
}

/// Returns what was asked for, and the requests that were refused.
fn asked(api: &Api<'_>) -> (BTreeSet<Right>, Vec<Value>) {
    let (mut all, mut refused) = (BTreeSet::new(), Vec::new());
    for event in api.audit() {
        if matches!(event["responseStatus"]["code"].as_u64(), Some(401 | 403)) {
            refused.push(event.clone());
        }
        let object = &event["objectRef"];
        if object["resource"].is_string() {
            all.insert((
                text(&object["apiGroup"]),
                text(&object["resource"]),
                text(&event["verb"]),
            ));
        }
    }
    (all, refused)
}

/// Has a controller that leads do everything that it ever does, ends it by `stop`, and compares.
pub(crate) fn are_all_used_and_enough(api: &Api<'_>, controller: &Objects, stop: impl FnOnce()) {
    exercise(api);
    let mut wanted = granted(controller);
    if !api.serves("discovery.k8s.io/v1", "EndpointSlice") {
        eprintln!(
            "not served here, so that nothing asks for it: discovery.k8s.io/v1 endpointslices"
        );
        wanted.retain(|(group, _, _)| group != "discovery.k8s.io");
    }
    let mut last = asked(api);
    let used = wait::until("every right but those to watch to be used", LIMIT, || {
        last = asked(api);
        let all = wanted.iter().filter(|(_, _, verb)| verb != "watch");
        all.clone().all(|right| last.0.contains(right))
    });
    let missing: Vec<_> = wanted.difference(&last.0).collect();
    assert!(
        used.is_ok(),
        "{used:?}; rights that nothing uses: {missing:?}"
    );
    // A watch is written down once it is over.
    stop();
    let used = wait::until(
        "what is asked for, and what is granted, to be the same",
        LIMIT,
        || {
            last = asked(api);
            last.0 == wanted
        },
    );
    let different: Vec<_> = wanted.symmetric_difference(&last.0).collect();
    assert!(used.is_ok(), "{used:?}: {different:?}");
    assert!(last.1.is_empty(), "refused: {:?}", last.1);
}

/// Makes, changes and deletes what a controller follows.
fn exercise(api: &Api<'_>) {
    let group = "/apis/networking.k8s.io/v1/namespaces/garden/networkpolicies";
    let services = "/api/v1/namespaces/garden/services";
    // Created, although it exists already: the label of its manager is missing.
    let stranger = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "name": "ingress-to-tried-tcp-80" },
        "spec": { "podSelector": {} },
    });
    api.must("POST", group, Some(&stranger));
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": { "name": "tried" },
        "spec": { "selector": { "app": "tried" }, "ports": [{ "port": 80 }] },
    });
    api.must("POST", services, Some(&service));
    let written = |name: &str, what: &str| {
        let path = format!("{group}/{name}");
        wait::until(what, LIMIT, || {
            let answer = api.request("GET", &path, None);
            let labels = answer.json().unwrap_or_default()["metadata"]["labels"].clone();
            answer.status == 200 && !labels.is_null()
        })
        .unwrap();
    };
    written("ingress-to-tried-tcp-80", "a policy of another manager");
    written("egress-to-tried-tcp-80", "a policy of its own");
    // An Event, and a policy that is put back.
    let key = "networking.resources.gardener.cloud/from-world-to-ports";
    let bad = json!({ "metadata": { "annotations": { key: "no JSON" } } });
    api.must("PATCH", &format!("{services}/tried"), Some(&bad));
    // What vanishes within a second is not reported.
    wait::until("an Event", LIMIT, || {
        let events = api.request("GET", "/api/v1/namespaces/garden/events", None);
        events.text().contains("\"tried\"")
    })
    .unwrap();
    let spoilt = json!({ "spec": { "policyTypes": ["Ingress", "Egress"] } });
    api.must(
        "PATCH",
        &format!("{group}/egress-to-tried-tcp-80"),
        Some(&spoilt),
    );
    // Deleted.
    api.must("DELETE", &format!("{services}/tried"), None);
}

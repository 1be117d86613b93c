//! A thousand Services, a hundred of them bad, and an end in the middle of the work.

use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::wait;

use crate::api::{P, Policies, service, services};
use crate::child::{Child, LIMIT};
use crate::stage::{SERVICES, Stage};

const SERVICES_IN_ALL: usize = 1000;
const NAMESPACES: usize = 20;
const FILLERS: usize = 4;

/// What becomes of a Service's annotation.
#[derive(Clone, Copy, PartialEq)]
enum Fate {
    /// It has none.
    Good,
    /// It is bad from the start.
    BadAtOnce,
    /// It is good, and bad later.
    BadLater,
}

fn fate(number: usize) -> Fate {
    match number % 20 {
        0 => Fate::BadAtOnce,
        10 => Fate::BadLater,
        _ => Fate::Good,
    }
}

fn place(number: usize) -> (String, String) {
    let namespace = number / (SERVICES_IN_ALL / NAMESPACES);
    (format!("crowd-{namespace}"), format!("s-{number}"))
}

fn alias() -> String {
    format!("{P}/from-all-allowed-ports")
}

fn object(number: usize) -> Value {
    let mut object = service(&place(number).1, 80);
    let ports = match fate(number) {
        Fate::Good => return object,
        Fate::BadAtOnce => "[{",
        Fate::BadLater => r#"[{"port":80}]"#,
    };
    object["metadata"]["annotations"] = json!({ alias(): ports });
    object
}

/// Does something for every Service that `chosen` accepts, by several hands.
fn each(stage: &Stage, chosen: fn(usize) -> bool, act: fn(&mut crate::api::Api, usize)) {
    thread::scope(|scope| {
        for hand in 0..FILLERS {
            scope.spawn(move || {
                let mut api = stage.api();
                let numbers = (hand..SERVICES_IN_ALL).step_by(FILLERS);
                for number in numbers.filter(|number| chosen(*number)) {
                    act(&mut api, number);
                }
            });
        }
    });
}

fn count(chosen: fn(usize) -> bool) -> usize {
    (0..SERVICES_IN_ALL)
        .filter(|number| chosen(*number))
        .count()
}

fn updates(controller: &Child) -> f64 {
    controller.value("rhizome_netpol_writes_total", &[("verb", "update")])
}

fn has(policies: &Policies, number: usize, suffix: &str) -> bool {
    let (namespace, name) = place(number);
    ["ingress", "egress"]
        .iter()
        .all(|way| policies.contains_key(&format!("{namespace}/{way}-to-{name}-{suffix}")))
}

/// The end comes in the middle of the work; the next controller has only the rest to do.
fn converge_in_two_goes(stage: &Stage) -> (Child, Policies) {
    let mut first = stage.controller("first", SERVICES);
    wait::until("it to be in the middle", LIMIT, || first.writes() > 300.0).unwrap();
    let (status, took) = first.terminate();
    assert_eq!(status.code(), Some(0), "{}", first.guard.log_tail(20));
    assert!(took < Duration::from_secs(1), "{took:?}");
    let mut api = stage.api();
    let done = api.policies().len();
    let wanted = 2 * SERVICES_IN_ALL + 2 * count(|number| fate(number) == Fate::BadLater);
    assert!((300..wanted).contains(&done), "{done}");
    let second = stage.controller("second", SERVICES);
    let policies = api.wait_policies("all policies", |found| found.len() == wanted);
    // Whatever was there was whole.
    assert_eq!(updates(&second), 0.0);
    wait::until("the rest to be counted", LIMIT, || {
        second.writes() == (wanted - done) as f64
    })
    .unwrap();
    (second, policies)
}

#[test]
fn bad_services_do_not_delay_the_others() {
    let stage = Stage::new("crowd");
    let mut api = stage.api();
    for number in 0..NAMESPACES {
        api.namespace(&format!("crowd-{number}"), &json!({}));
    }
    each(
        &stage,
        |_| true,
        |api, number| {
            api.create(&services(&place(number).0), &object(number));
        },
    );
    let (controller, policies) = converge_in_two_goes(&stage);
    for number in 0..SERVICES_IN_ALL {
        assert!(has(&policies, number, "tcp-80"), "{number}");
        let expected = fate(number) == Fate::BadLater;
        assert_eq!(
            has(&policies, number, "tcp-80-via-all"),
            expected,
            "{number}"
        );
    }
    // Others go bad, and every one of the bad gets another port at the same time.
    each(
        &stage,
        |number| fate(number) != Fate::Good,
        |api, number| {
            let (namespace, name) = place(number);
            let change = json!({
                "metadata": { "annotations": { alias(): "[{" } },
                "spec": { "ports": [{ "port": 90, "protocol": "TCP" }] },
            });
            api.patch(&format!("{}/{name}", services(&namespace)), &change);
        },
    );
    let moved = |found: &Policies| {
        let mut bad = (0..SERVICES_IN_ALL).filter(|number| fate(*number) != Fate::Good);
        bad.all(|number| has(found, number, "tcp-90") && !has(found, number, "tcp-80"))
    };
    let policies = api.wait_policies("the ports of the bad ones to be followed", moved);
    for number in 0..SERVICES_IN_ALL {
        let kept = fate(number) == Fate::BadLater;
        assert_eq!(has(&policies, number, "tcp-80-via-all"), kept, "{number}");
    }
    assert_eq!(updates(&controller), 0.0);
    each_object_gets_one_event(&mut api, &controller);
}

fn each_object_gets_one_event(api: &mut crate::api::Api, controller: &Child) {
    let bad = (0..SERVICES_IN_ALL).filter(|number| fate(*number) != Fate::Good);
    let mut wanted: Vec<_> = bad
        .map(|number| {
            let (namespace, name) = place(number);
            format!("{namespace}/{name}: InvalidAnnotation")
        })
        .collect();
    wanted.sort();
    let mut last = Vec::new();
    let reported = wait::until("an Event for each bad Service", LIMIT, || {
        last = api.events();
        last.dedup();
        last == wanted
    });
    assert!(reported.is_ok(), "{reported:?}: {} Events", last.len());
    // Two controllers found the initial ones invalid, and neither reported anything twice.
    let most = wanted.len() + count(|number| fate(number) == Fate::BadAtOnce);
    assert!(api.events().len() <= most, "{}", api.events().len());
    let written = controller.value("rhizome_netpol_events_total", &[("result", "written")]);
    assert_eq!(written, wanted.len() as f64);
    assert_eq!(
        controller.value("rhizome_netpol_events_total", &[("result", "failed")]),
        0.0
    );
}

//! Two replicas: one writes, the other takes over.

use std::time::Duration;

use serde_json::json;
use testkit::wait::{self, Stopwatch};

use crate::api::{Api, policies_of, service, services, versions};
use crate::child::{Child, LIMIT};
use crate::stage::{SERVICES, Stage};

/// The lease lasts 15 s and is looked at each 2 s.
const AFTER_KILL: Duration = Duration::from_secs(22);

/// A lease that was released is free.
const AFTER_RELEASE: Duration = Duration::from_secs(6);

fn holder(api: &mut Api) -> String {
    let path = "/apis/coordination.k8s.io/v1/namespaces/garden/leases/rhizome-netpol-controller";
    let lease = api.find(path).unwrap();
    lease["spec"]["holderIdentity"].as_str().unwrap().to_owned()
}

/// One thing that has to be done after each change of leaders, and what it takes.
fn only_what_is_due(api: &mut Api, leader: &Child, name: &str) {
    let before = api.policies();
    let writes = leader.writes();
    api.create(&services("a"), &service(name, 80));
    api.delete(&format!("{}/egress-to-s-1-tcp-80", policies_of("a")));
    let own = format!("a/egress-to-{name}-tcp-80");
    let after = api.wait_policies("what is due", |found| {
        found.contains_key(&own)
            && found.len() == before.len() + 2
            && found.contains_key("a/egress-to-s-1-tcp-80")
    });
    let (old, new) = (versions(&before), versions(&after));
    for (key, version) in old
        .iter()
        .filter(|(key, _)| **key != "a/egress-to-s-1-tcp-80")
    {
        assert_eq!(new.get(key), Some(version), "{key}");
    }
    wait::until("three writes", LIMIT, || leader.writes() - writes == 3.0).unwrap();
    assert_eq!(
        leader.value("rhizome_netpol_writes_total", &[("verb", "delete")]),
        0.0
    );
    assert_eq!(
        leader.value("rhizome_netpol_writes_total", &[("verb", "update")]),
        0.0
    );
}

#[test]
fn one_replica_writes_and_another_takes_over() {
    let stage = Stage::new("replicas");
    let mut api = stage.api();
    api.namespace("a", &json!({}));
    let mut first = stage.replica("first", SERVICES);
    first.wait_leading(LIMIT);
    let mut second = stage.replica("second", SERVICES);
    second.wait_ready();
    for number in 0..10 {
        api.create(&services("a"), &service(&format!("s-{number}"), 80));
    }
    api.wait_policies("the policies", |found| found.len() == 20);
    assert!(holder(&mut api).starts_with("first_"));
    assert!(!second.is_leading());
    // The leader vanishes.
    first.guard.kill().unwrap();
    second.wait_leading(AFTER_KILL);
    assert!(holder(&mut api).starts_with("second_"));
    assert_eq!(second.writes(), 0.0, "nothing was due");
    only_what_is_due(&mut api, &second, "one");
    // The leader ends.
    let third = stage.replica("third", SERVICES);
    third.wait_ready();
    assert!(!third.is_leading());
    let clock = Stopwatch::start();
    let (status, took) = second.terminate();
    assert_eq!(status.code(), Some(0));
    assert!(took < Duration::from_secs(1), "{took:?}");
    third.wait_leading(AFTER_RELEASE.saturating_sub(clock.elapsed()));
    assert!(holder(&mut api).starts_with("third_"));
    only_what_is_due(&mut api, &third, "two");
    assert_eq!(api.policies().len(), 24);
}

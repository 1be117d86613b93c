//! Who gets routes, and what goes on without the controller.

use serde_json::Value;
use testkit::wait;

use crate::ask::{Answer, Ask, ask};
use crate::objects::name_of;
use crate::program::LIMIT;
use crate::seed::{Gateway, Seed};

/// A client whose certificate is another gateway's is refused, and gets its own routes if it asks
/// for them.
pub(crate) fn gateway_gets_only_its_own_routes(seed: &Seed<'_>) {
    let denied = || {
        let labels = [("reason", "denied")];
        seed.metric("rhizome_xds_refused_streams_total", &labels)
    };
    assert_eq!(denied(), 0.0);
    let thief = seed.start_gateway("other", "default");
    wait::until("two refusals", LIMIT, || denied() >= 2.0).unwrap();
    assert!(!thief.is_ready());
    assert_eq!(thief.metric("rhizome_xds_connected", &[]), 0.0);
    let clients = seed.snapshot()["clients"].take();
    let nodes = clients
        .as_array()
        .unwrap()
        .iter()
        .map(|client| &client["node"]);
    assert_eq!(nodes.collect::<Vec<_>>(), ["default-0"]);
    drop(thief);

    // Only what is for all gateways is for the other one: the annotated Service.
    let other = seed.gateway("other", "other");
    let led = |shoot: &str| {
        let request = Ask::Name(Some(name_of(shoot)));
        ask(&other.ports, seed.authority_pem(), &request)
    };
    assert_eq!(led("d"), Answer::Shoot("d".to_owned()));
    for shoot in ["a", "b", "c", "e"] {
        assert_eq!(led(shoot), Answer::Nothing, "{shoot}");
    }
}

/// Gateways leave the configuration file and return to it while the controller runs.
pub(crate) fn gateways_come_and_go(seed: &Seed<'_>, ours: &Gateway) {
    let led = |own: &Gateway, shoot: &str| {
        let request = Ask::Name(Some(name_of(shoot)));
        ask(&own.ports, seed.authority_pem(), &request)
    };
    let served = |wanted: &[&str]| {
        wait::until(&format!("the gateways {wanted:?}"), LIMIT, || {
            let gateways = seed.snapshot()["gateways"].take();
            gateways.as_object().unwrap().keys().eq(wanted)
        })
        .unwrap();
    };
    let wait_stream = || {
        let connected = || ours.program.metric("rhizome_xds_connected", &[]) == 1.0;
        wait::until("a stream", LIMIT * 2, connected).unwrap();
    };
    let denied = || {
        let labels = [("reason", "denied")];
        seed.metric("rhizome_xds_refused_streams_total", &labels)
    };
    let generation = ours.program.metric("rhizome_snapshot_generation", &[]);
    let refused = denied();
    seed.configure(&["default"]);
    served(&["default"]);
    seed.remove_cache("other", "other");
    let mut other = seed.start_gateway("other", "other");
    wait::until("a refusal", LIMIT, || denied() > refused).unwrap();
    assert!(!other.is_ready());
    let labels = [("gateway", "other")];
    assert_eq!(seed.metric("rhizome_xds_pushes_total", &labels), 0.0);
    wait_stream();
    assert_eq!(led(ours, "a"), Answer::Shoot("a".to_owned()));

    // A file that is refused changes nothing.
    seed.configure(&[]);
    seed.configure(&["default", "other"]);
    served(&["default", "other"]);
    // One that was refused often waits for up to 30 s.
    wait::until("routes", LIMIT * 2, || other.is_ready()).unwrap();
    let ports = other.ports();
    let other = Gateway {
        program: other,
        ports,
    };
    assert_eq!(led(&other, "d"), Answer::Shoot("d".to_owned()));
    assert_eq!(led(&other, "a"), Answer::Nothing);
    wait_stream();
    assert_eq!(led(ours, "a"), Answer::Shoot("a".to_owned()));
    // It was answered with what it had.
    let now = ours.program.metric("rhizome_snapshot_generation", &[]);
    assert_eq!(now, generation);
}

/// The controller is away and comes back: no client is affected, and nothing is sent twice.
pub(crate) fn our_gateway_goes_on_without_the_controller(seed: &Seed<'_>, ours: &Gateway) {
    let led = |shoot: &str| {
        let request = Ask::Name(Some(name_of(shoot)));
        ask(&ours.ports, seed.authority_pem(), &request)
    };
    let connected = || ours.program.metric("rhizome_xds_connected", &[]);
    let generation = ours.program.metric("rhizome_snapshot_generation", &[]);
    seed.stop_controller();
    wait::until("the stream to end", LIMIT, || connected() == 0.0).unwrap();
    for shoot in ["a", "b", "c", "d", "e"] {
        assert_eq!(led(shoot), Answer::Shoot(shoot.to_owned()));
    }
    // Who starts meanwhile is ready at once: it has the cache, which is some seconds old. What led
    // to this shoot has not changed for longer.
    let second = seed.gateway("default", "default");
    let request = Ask::Name(Some(name_of("d")));
    let answer = ask(&second.ports, seed.authority_pem(), &request);
    assert_eq!(answer, Answer::Shoot("d".to_owned()));
    drop(second);

    seed.start_controller();
    // A gateway that was refused often waits for up to 30 s.
    wait::until("a stream", LIMIT * 2, || connected() == 1.0).unwrap();
    let mut last = Value::Null;
    wait::until("the controller to know the gateway", LIMIT, || {
        last = seed.snapshot()["clients"].take();
        last.as_array().is_some_and(|clients| clients.len() == 1)
    })
    .unwrap();
    // The gateway says what it has, and that is all that there is.
    let sent = seed.metric("rhizome_xds_push_bytes_total", &[("gateway", "default")]);
    assert!(sent < 2048.0, "{sent} bytes, {last:#}");
    assert_eq!(
        ours.program.metric("rhizome_snapshot_generation", &[]),
        generation
    );
    assert_eq!(led("a"), Answer::Shoot("a".to_owned()));
}

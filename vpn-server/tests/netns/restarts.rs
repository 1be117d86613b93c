//! Programs that are restarted, by intent or not, under connections that are held.

use std::time::Duration;

use testkit::process::Signal;
use testkit::tunnel_world::{LIMIT, Params, Part};

use crate::world::{NOTICED, alive, converse, doubled, hold, lived, start, wait_transport};

#[test]
fn connections_survive_gateway_restart() {
    for transport in ["tcp", "udp", "auto"] {
        let params = Params {
            transport,
            ..Params::default()
        };
        let (mut world, _echo) = start(params);
        let held = hold(&world, 0);
        held.begin_anew();
        world.child(Part::Gateway).unwrap().kill().unwrap();
        world.start_part(Part::Gateway).unwrap();
        world.wait_ready(Part::Gateway).unwrap();
        lived(
            &held,
            &format!("a restart of the gateway ({transport})"),
            NOTICED,
        );
        converse(&world, 0);
    }
}

#[test]
fn restarted_server_leaves_the_other_unharmed() {
    let (mut world, _echo) = start(doubled());
    let by_other = hold(&world, 1);
    let by_this = hold(&world, 0);
    by_other.begin_anew();

    let server = world.child(Part::Server(0)).unwrap();
    server.signal(Signal::TERM).unwrap();
    converse(&world, 1);
    let status = world.child(Part::Server(0)).unwrap().wait_exit(LIMIT);
    assert_eq!(status.unwrap().code(), Some(0));
    assert!(by_this.report().exchanges > 0);
    testkit::wait::until("what ended in it to be cut", LIMIT, || {
        by_this.report().failure.is_some()
    })
    .unwrap();
    // Nothing of this path was broken: no more than a busy machine's hiccups.
    lived(
        &by_other,
        "a restart of the other server",
        Duration::from_secs(2),
    );

    world.start_part(Part::Server(0)).unwrap();
    world.wait_ready(Part::Server(0)).unwrap();
    converse(&world, 0);
    alive(&by_other);
}

#[test]
fn stopping_client_drains_to_others() {
    let (mut world, _echo) = start(doubled());
    // Whichever client carries it.
    let held = hold(&world, 0);
    let client = world.child(Part::Client(0)).unwrap();
    client.signal(Signal::TERM).unwrap();
    for server in 0..2 {
        converse(&world, server);
    }
    let status = world.child(Part::Client(0)).unwrap().wait_exit(LIMIT);
    assert_eq!(status.unwrap().code(), Some(0));
    for server in 0..2 {
        converse(&world, server);
    }
    println!("a connection from before: {:?}", held.report());
}

#[test]
fn stopped_client_leaves_nothing_behind() {
    let (mut world, _echo) = start(Params::default());
    converse(&world, 0);
    world
        .child(Part::Client(0))
        .unwrap()
        .signal(Signal::TERM)
        .unwrap();
    let status = world.child(Part::Client(0)).unwrap().wait_exit(LIMIT);
    assert_eq!(status.unwrap().code(), Some(0));
    let namespace = world.namespace(Part::Client(0));
    assert!(namespace.ip(&["link", "show", "rhizome0"]).is_err());
    let mut nft = namespace.command("nft");
    let tables = testkit::command::run(nft.args(["list", "tables"])).unwrap();
    assert_eq!(tables, "");
}

#[test]
fn restarted_server_is_found_by_each_transport() {
    for transport in ["tcp", "udp"] {
        let params = Params {
            transport,
            ..Params::default()
        };
        let (mut world, _echo) = start(params);
        for _ in 0..2 {
            world.child(Part::Server(0)).unwrap().kill().unwrap();
            world.start_part(Part::Server(0)).unwrap();
            world.wait_ready(Part::Server(0)).unwrap();
            converse(&world, 0);
        }
        wait_transport(&world, 0, 0, transport);
    }
}

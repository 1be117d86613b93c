//! Seeds whose pods have the shoot's own addresses.

use testkit::tunnel_world::{NODE, POD, POD_V6, Params, SERVICE, SeedRange, World};

use crate::world::{ECHO, alive, converse, hold, lay, start};

fn same() -> Params {
    Params {
        seed_range: SeedRange::OfTheShoot,
        ..Params::default()
    }
}

/// Has a word echoed by `address` in the shoot.
fn asks(world: &World, address: &str) {
    let mut stream = world.dial(0, address).unwrap();
    assert_eq!(stream.exchange(b"who").unwrap(), b"who");
}

#[test]
fn pod_with_server_address_is_reached() {
    let (world, echo) = start(same());
    assert_eq!(world.network.addresses.server(0).to_string(), POD);
    converse(&world, 0);
    alive(&hold(&world, 0));
    assert!(echo.accepted() >= 2);
}

#[test]
fn pods_with_caller_address_are_reached() {
    let mut world = lay(same());
    let addresses = [
        world.network.addresses.api_server(),
        world.network.addresses.gateway(),
    ];
    for address in addresses {
        let cidr = format!("{address}/11");
        world.network.pod.add_address("eth0", &cidr).unwrap();
    }
    let echo = world.echo(ECHO).unwrap();
    world.start().unwrap();
    for address in addresses {
        asks(&world, &format!("{address}:7000"));
    }
    assert_eq!(echo.accepted(), 2);
}

#[test]
fn nodes_and_services_are_reached_as_pods_are() {
    let (world, _echo) = start(Params::default());
    for address in [POD, NODE, SERVICE] {
        asks(&world, &format!("{address}:7000"));
    }
}

#[test]
fn pods_are_reached_by_ipv6() {
    let (world, _echo) = start(Params {
        ipv6: true,
        ..Params::default()
    });
    asks(&world, &format!("[{POD_V6}]:7000"));
    asks(&world, &format!("{POD}:7000"));
}

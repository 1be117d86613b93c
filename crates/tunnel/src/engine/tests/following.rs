//! A server that follows its client, whatever number the client's next session has.

use std::time::Duration;

use tunnel_proto::path::Mode;

use super::world::{World, ms};

const MODES: [Mode; 3] = [Mode::Auto, Mode::Tcp, Mode::Udp];

/// Expects that both ends are healthy and that a flow of this port works at once.
fn is_followed(world: &mut World, port: u16) {
    let now = world.now;
    let ends = [&world.clients[0].engine, &world.servers[0].engine];
    let healthy = ends.map(|end| end.status(now).is_healthy());
    assert_eq!(healthy, [true, true], "client, server");
    assert!(world.carries(0, port));
}

#[test]
fn server_follows_client_with_older_clock() {
    for mode in MODES {
        let mut world = World::new(1, 1, mode);
        world.run_for(Duration::from_secs(600));
        is_followed(&mut world, 1);
        world.restart_client(0, Duration::from_secs(3600));
        // Until no session of the old process is left.
        world.run_for(Duration::from_secs(185));
        is_followed(&mut world, 2);
    }
}

#[test]
fn server_follows_client_that_restarts_often() {
    for mode in MODES {
        let mut world = World::new(1, 1, mode);
        for port in 0..300 {
            world.run_for(ms(2000));
            is_followed(&mut world, port);
            world.restart_client(0, Duration::ZERO);
        }
    }
}

#[test]
fn server_follows_client_after_one_way_loss() {
    for minutes in [1, 3, 5, 20] {
        let mut world = World::new(1, 1, Mode::Udp);
        world.run_for(ms(3000));
        is_followed(&mut world, 1);
        world.udp_to_clients = false;
        world.run_for(Duration::from_secs(60 * minutes));
        world.udp_to_clients = true;
        world.run_for(Duration::from_secs(20));
        is_followed(&mut world, 2);
    }
}

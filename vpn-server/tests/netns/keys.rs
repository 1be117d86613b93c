//! Keys that are replaced in two steps, under a connection that is held.

use testkit::tunnel_world::{LIMIT, Params, Part};
use testkit::wait;

use crate::world::{NOTICED, converse, hold, lived, start};

#[test]
fn client_key_rotation_loses_no_connection() {
    let (mut world, _echo) = start(Params::default());
    let held = hold(&world, 0);
    held.begin_anew();

    // First the server knows both, then the client has the new one, then the old one is forgotten.
    let fresh = world.keys.generate("client-0-key-2").unwrap();
    world.keys.known_clients[0].insert(0, fresh.public.clone());
    world.write_files().unwrap();
    converse(&world, 0);
    let private = std::fs::read(&fresh.path).unwrap();
    world.dir.replace("client-0-key", private).unwrap();
    let handshakes = || world.metric(Part::Server(0), HANDSHAKES, &[]);
    let before = handshakes();
    wait::until("a handshake with the new key", LIMIT, || {
        handshakes() > before
    })
    .unwrap();
    converse(&world, 0);
    world.keys.known_clients[0].truncate(1);
    world.write_files().unwrap();
    lived(&held, "a new key of the client", NOTICED);
    converse(&world, 0);
}

#[test]
fn server_key_rotation_loses_no_connection() {
    // Two files that hold one key, as they do between rotations.
    let mut world = crate::world::lay(Params::default());
    let _echo = world.echo(crate::world::ECHO).unwrap();
    let old = std::fs::read(&world.keys.servers[0][0].path).unwrap();
    let second = world.keys.generate("server-0-key-b").unwrap();
    world.dir.replace("server-0-key-b", old).unwrap();
    world.keys.servers[0].push(second);
    world.write_files().unwrap();
    world.start().unwrap();
    let held = hold(&world, 0);
    held.begin_anew();

    let fresh = world.keys.generate("server-0-key-2").unwrap();
    let private = std::fs::read(&fresh.path).unwrap();
    world
        .dir
        .replace("server-0-key-b", private.clone())
        .unwrap();
    let reloads = || world.metric(Part::Server(0), RELOADS, &[]);
    let before = reloads();
    wait::until("the server to have both", LIMIT, || reloads() > before).unwrap();
    converse(&world, 0);
    let handshakes = world.metric(Part::Server(0), HANDSHAKES, &[]);
    world.keys.known_servers[0].insert(0, fresh.public);
    world.write_files().unwrap();
    wait::until("a handshake with the new key", LIMIT, || {
        world.metric(Part::Server(0), HANDSHAKES, &[]) > handshakes
    })
    .unwrap();
    converse(&world, 0);
    world.keys.known_servers[0].truncate(1);
    world.write_files().unwrap();
    let first = world.keys.servers[0][0].path.clone();
    let first = first.file_name().and_then(|name| name.to_str()).unwrap();
    world.dir.replace(first, private).unwrap();
    lived(&held, "a new key of the server", NOTICED);
    converse(&world, 0);
}

#[test]
fn removed_client_is_refused() {
    let (mut world, _echo) = start(Params::default());
    converse(&world, 0);
    let other = world.keys.generate("foreign").unwrap();
    world.keys.known_clients[0] = vec![other.public];
    world.write_files().unwrap();
    let shut_out = || world.dial(0, &crate::world::pod()).is_err();
    wait::until("the client to be shut out", LIMIT, shut_out).unwrap();
}

const HANDSHAKES: &str = "rhizome_tunnel_handshakes_total";

const RELOADS: &str = "rhizome_vpn_keys_reloads_total";

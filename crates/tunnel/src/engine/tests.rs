//! Two ends and what is between them, in simulated time and without cryptography.

mod following;
mod packets;
mod sink;
mod world;

use std::time::Duration;

use tunnel_proto::ip::transport::{Tcp, flags};
use tunnel_proto::ip::{Header, mss};
use tunnel_proto::path::{Mode, Transport};

use super::*;
use crate::keys::PrivateKey;
use packets::packet;
use world::{World, ms};

const POD: &str = "100.96.0.5";

#[test]
fn a_flow_opened_by_the_server_reaches_the_shoot_and_is_answered() {
    let mut world = World::new(1, 1, Mode::Auto);
    world.run_for(ms(1000));
    assert_eq!(world.transport(0, 0), Some(Transport::Udp));
    let source = world.server_address(0);
    world.server_sends(0, packet(&source, POD, flags::SYN, 1000));
    world.run_for(ms(100));
    let arrived = world.at_client(0);
    assert_eq!(arrived.len(), 1);
    let header = Header::parse(&arrived[0]).unwrap();
    assert_eq!(
        Tcp::new(header.segment(&arrived[0])).unwrap().flags(),
        flags::SYN
    );
    world.client_sends(0, packet(POD, &source, flags::SYN | flags::ACK, 1000));
    world.run_for(ms(100));
    assert_eq!(world.at_server(0).len(), 1);
}

#[test]
fn nothing_of_the_shoot_opens_a_flow_toward_the_seed() {
    let mut world = World::new(1, 1, Mode::Auto);
    world.run_for(ms(1000));
    let target = world.server_address(0);
    world.client_sends(0, packet(POD, &target, flags::SYN, 0));
    world.client_sends(0, packet(POD, &target, flags::ACK, 100));
    world.client_sends(0, packet("192.168.123.64", &target, flags::SYN, 0));
    world.run_for(ms(100));
    assert!(world.at_server(0).is_empty());
    let refused: u64 = world.servers[0]
        .engine
        .filter()
        .unwrap()
        .refused()
        .map(|(_, n)| n)
        .sum();
    assert_eq!(refused, 3);
}

#[test]
fn inner_sources_that_are_not_the_peers_are_dropped() {
    let mut world = World::new(1, 1, Mode::Auto);
    world.run_for(ms(1000));
    let target = world.server_address(0);
    for source in ["9.9.9.9", "192.168.123.65", &target] {
        world.client_sends(0, packet(source, &target, flags::ACK, 0));
    }
    world.run_for(ms(100));
    assert!(world.at_server(0).is_empty());
    assert_eq!(world.dropped_at_server(0, "source"), 3);
}

#[test]
fn with_udp_blocked_the_tunnel_is_up_within_a_second() {
    let mut world = World::new(1, 1, Mode::Auto);
    world.udp = false;
    world.run_for(ms(1000));
    assert_eq!(world.transport(0, 0), Some(Transport::Tcp));
    assert!(world.servers[0].engine.status(world.now).is_healthy());
}

#[test]
fn udp_is_used_once_it_opens_and_left_when_it_dies() {
    let mut world = World::new(1, 1, Mode::Auto);
    world.udp = false;
    world.run_for(ms(10_000));
    world.udp = true;
    world.run_for(ms(30_000));
    assert_eq!(world.transport(0, 0), Some(Transport::Udp));
    assert_eq!(world.server_transport(0, 0), Some(Transport::Udp));
    world.udp = false;
    world.run_for(ms(2000));
    assert_eq!(world.transport(0, 0), Some(Transport::Tcp));
    assert_eq!(world.server_transport(0, 0), Some(Transport::Tcp));
}

#[test]
fn a_change_of_transport_keeps_the_flow_and_needs_no_handshake() {
    let mut world = World::new(1, 1, Mode::Auto);
    world.run_for(ms(2000));
    let source = world.server_address(0);
    world.server_sends(0, packet(&source, POD, flags::SYN, 0));
    world.run_for(ms(50));
    let handshakes = world.clients[0].engine.counts().handshakes;
    world.udp = false;
    world.run_for(ms(2000));
    world.server_sends(0, packet(&source, POD, flags::ACK, 100));
    world.run_for(ms(50));
    world.client_sends(0, packet(POD, &source, flags::ACK, 100));
    world.run_for(ms(50));
    assert_eq!((world.at_client(0).len(), world.at_server(0).len()), (2, 1));
    assert_eq!(world.clients[0].engine.counts().handshakes, handshakes);
}

#[test]
fn sessions_are_renewed_while_packets_flow() {
    let mut world = World::new(1, 1, Mode::Auto);
    world.run_for(ms(1000));
    let before = world.clients[0].engine.counts().handshakes;
    world.run_for(Duration::from_secs(400));
    let after = world.clients[0].engine.counts().handshakes;
    assert!(
        (before + 2..before + 6).contains(&after),
        "{before} {after}"
    );
    assert_eq!(world.transport(0, 0), Some(Transport::Udp));
    assert!(
        world.clients[0].longest_down < ms(1),
        "{:?}",
        world.clients[0].longest_down
    );
}

#[test]
fn a_restarted_server_is_found_again() {
    for udp in [true, false] {
        let mut world = World::new(1, 1, Mode::Auto);
        world.udp = udp;
        world.run_for(ms(5000));
        world.restart_server(0);
        world.run_for(ms(4000));
        assert!(
            world.clients[0].engine.status(world.now).is_healthy(),
            "{udp}"
        );
        assert!(
            world.servers[0].engine.status(world.now).is_healthy(),
            "{udp}"
        );
    }
}

#[test]
fn flows_stay_with_their_client_and_new_ones_avoid_a_draining_or_dead_one() {
    let mut world = World::new(1, 2, Mode::Auto);
    world.run_for(ms(2000));
    let source = world.server_address(0);
    for port in 0..32 {
        world.server_sends_port(0, &source, POD, flags::SYN, port);
    }
    world.run_for(ms(100));
    let first: Vec<_> = (0..2)
        .map(|client| world.take_at_client(client).len())
        .collect();
    assert_eq!(first.iter().sum::<usize>(), 32);
    assert!(first.iter().all(|share| *share > 4), "{first:?}");
    world.drain_client(0);
    world.run_for(ms(200));
    for port in 100..132 {
        world.server_sends_port(0, &source, POD, flags::SYN, port);
    }
    for port in 0..32 {
        world.server_sends_port(0, &source, POD, flags::ACK, port);
    }
    world.run_for(ms(100));
    let second: Vec<_> = (0..2)
        .map(|client| world.take_at_client(client).len())
        .collect();
    assert_eq!(second, [first[0], first[1] + 32]);
    let info = world.clients[0].engine.status(world.now).peers[0].flows;
    assert_eq!(info as usize, first[0]);
}

#[test]
fn new_flows_avoid_a_client_that_died_within_three_seconds() {
    let mut world = World::new(1, 2, Mode::Auto);
    world.run_for(ms(2000));
    world.clients[1].dead = true;
    world.run_for(ms(3000));
    let source = world.server_address(0);
    for port in 0..16 {
        world.server_sends_port(0, &source, POD, flags::SYN, port);
    }
    world.run_for(ms(100));
    assert_eq!(world.take_at_client(0).len(), 16);
}

#[test]
fn both_keys_of_a_rotation_work_and_nothing_is_lost_between() {
    let mut world = World::new(1, 1, Mode::Auto);
    world.run_for(ms(1000));
    let (old, new) = (world::key(1), world::key(101));
    // First everybody is told the new key, then it is used, then the old one goes.
    world.rotate_client_key(&[&old, &new], &[&old]);
    world.run_for(ms(2000));
    world.rotate_client_key(&[&old, &new], &[&new, &old]);
    world.run_for(ms(40_000));
    world.rotate_client_key(&[&new], &[&new]);
    world.run_for(ms(5000));
    assert!(
        world.clients[0].longest_down < ms(1),
        "{:?}",
        world.clients[0].longest_down
    );
    let source = world.server_address(0);
    world.server_sends(0, packet(&source, POD, flags::SYN, 0));
    world.run_for(ms(100));
    assert_eq!(world.at_client(0).len(), 1);
}

#[test]
fn a_syn_is_told_what_the_path_carries() {
    let mut world = World::new(1, 1, Mode::Auto);
    world.largest = Some(1400);
    world.run_for(ms(8000));
    let mtu = world.clients[0].engine.status(world.now).peers[0].mtu;
    assert!((1300..=1368).contains(&mtu), "{mtu}");
    let source = world.server_address(0);
    world.server_sends(0, packets::syn_with_mss(&source, POD, 1460));
    world.run_for(ms(100));
    let mut arrived = world.at_client(0).remove(0);
    let header = Header::parse(&arrived).unwrap();
    assert_eq!(mss::clamp(&header, &mut arrived, 100), Some(mtu - 40));
}

#[test]
fn a_path_too_small_for_udp_is_left_for_tcp() {
    let mut world = World::new(1, 1, Mode::Auto);
    world.largest = Some(1280);
    world.run_for(ms(5000));
    assert_eq!(world.transport(0, 0), Some(Transport::Tcp));
}

#[test]
fn too_large_a_packet_is_answered_on_the_device() {
    let mut world = World::new(1, 1, Mode::Auto);
    world.largest = Some(1400);
    world.run_for(ms(8000));
    let source = world.server_address(0);
    world.server_sends(0, packet(&source, POD, flags::SYN, 0));
    world.server_sends(0, packet(&source, POD, flags::ACK, 1380));
    world.run_for(ms(100));
    assert_eq!(world.at_client(0).len(), 1, "the SYN alone");
    let answers = world.at_server(0);
    assert_eq!(answers.len(), 1);
    assert_eq!(Header::parse(&answers[0]).unwrap().protocol, 1);
}

#[test]
fn faulty_identities_are_refused_by_name_and_change_nothing() {
    let mut world = World::new(1, 1, Mode::Auto);
    world.run_for(ms(1000));
    let good = world.server_identity(0);
    type Spoil = Box<dyn Fn(&mut Identity)>;
    let faults: [(&str, Spoil); 5] = [
        ("private key", Box::new(|it| it.keys.clear())),
        (
            "two peers are named",
            Box::new(|it| it.peers.push(it.peers[0].clone())),
        ),
        (
            "no public key",
            Box::new(|it| it.peers[0].public_keys.clear()),
        ),
        (
            "pairs of an own key",
            Box::new(|it| {
                it.keys = (1..=17).map(|n| PrivateKey::from_bytes([n; 32])).collect();
            }),
        ),
        (
            "both have the address",
            Box::new(|it| {
                let mut other = it.peers[0].clone();
                other.name = "other".to_owned();
                other.public_keys = vec![PrivateKey::from_bytes([9; 32]).public()];
                it.peers.push(other);
            }),
        ),
    ];
    for (text, spoil) in faults {
        let mut identity = good.clone();
        spoil(&mut identity);
        let now = world.now;
        let error = world.servers[0].engine.replace(now, identity).unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
    }
    world.run_for(ms(3000));
    assert!(world.clients[0].engine.status(world.now).is_healthy());
}

#[test]
fn whatever_arrives_does_no_harm() {
    let mut world = World::new(1, 1, Mode::Auto);
    world.run_for(ms(1000));
    let mut random = 1_u64;
    for len in 0..1600 {
        let bytes: Vec<u8> = (0..len)
            .map(|_| {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                (random >> 33) as u8
            })
            .collect();
        for first in 0..6 {
            let mut bytes = bytes.clone();
            if let Some(byte) = bytes.first_mut() {
                *byte = first;
            }
            world.junk(bytes);
        }
    }
    world.run_for(ms(3000));
    assert!(world.clients[0].engine.status(world.now).is_healthy());
    assert!(world.at_server(0).is_empty() && world.at_client(0).is_empty());
}

#[test]
fn keys_that_are_added_disturb_no_other_peer() {
    // One client drains, so that flows go to the other one.
    for client in [0, 1] {
        let mut world = World::new(1, 2, Mode::Auto);
        world.run_for(ms(1000));
        world.drain_client(1 - client);
        world.run_for(ms(500));
        assert!(world.carries(client, 1));
        world.server_keys(&[50, 60], &[&[1], &[2]]);
        world.run_for(ms(1000));
        assert!(world.carries(client, 2), "with another own key");
        world.server_keys(&[50, 60], &[&[1, 101], &[2]]);
        world.run_for(ms(1000));
        assert!(world.carries(client, 3), "with another key of a client");
        world.client_keys(client, &[1 + client as u8], &[60, 50]);
        world.run_for(ms(3000));
        assert!(world.carries(client, 4), "with the new key preferred");
        assert!(world.clients[client].longest_down < ms(1));
    }
}

#[test]
fn a_key_that_the_server_has_lost_gives_way_to_one_that_it_has() {
    for order in [[50, 60], [60, 50]] {
        let mut world = World::new(1, 1, Mode::Auto);
        world.server_keys(&[50, 60], &[&[1]]);
        world.client_keys(0, &[1], &order);
        world.run_for(ms(3000));
        assert!(world.carries(0, 1));
        let gone = order[0];
        world.server_keys(&[110 - gone], &[&[1]]);
        world.run_for(ms(5000));
        assert!(world.carries(0, 2), "without {gone}");
        assert!(
            world.clients[0].longest_down < ms(4000),
            "{:?}",
            world.clients[0].longest_down
        );
        world.run_for(ms(60_000));
        assert!(world.clients[0].engine.status(world.now).is_healthy());
    }
}

#[test]
fn udp_that_dies_in_one_direction_is_left_within_two_seconds() {
    for to_servers in [true, false] {
        let mut world = World::new(1, 1, Mode::Auto);
        world.run_for(ms(3000));
        assert!(world.carries(0, 1));
        world.udp_to_servers = !to_servers;
        world.udp_to_clients = to_servers;
        world.run_for(ms(2000));
        assert_eq!(world.transport(0, 0), Some(Transport::Tcp), "{to_servers}");
        assert_eq!(
            world.server_transport(0, 0),
            Some(Transport::Tcp),
            "{to_servers}"
        );
        assert!(world.carries(0, 2));
    }
}

#[test]
fn nothing_larger_than_the_path_is_sent_once_its_size_is_known() {
    let mut world = World::new(1, 1, Mode::Auto);
    world.largest = Some(1400);
    world.run_for(ms(8000));
    let source = world.server_address(0);
    world.server_sends(0, packet(&source, POD, flags::SYN, 0));
    world.run_for(ms(20));
    world.largest_sent = 0;
    for _ in 0..400 {
        for data in [1328, 1340, 1380] {
            world.server_sends(0, packet(&source, POD, flags::ACK, data));
            world.client_sends(0, packet(POD, &source, flags::ACK, data));
        }
        world.run_for(ms(20));
    }
    assert!(world.largest_sent <= 1400, "{}", world.largest_sent);
    assert!(world.at_client(0).len() > 300, "what fits goes through");
}

#[test]
fn what_pods_say_in_the_manner_of_a_probe_is_not_believed() {
    let mut world = World::new(1, 1, Mode::Auto);
    world.run_for(ms(1000));
    let info = tunnel_proto::echo::ProbeInfo {
        draining: true,
        mtu: 1280,
        ..tunnel_proto::echo::ProbeInfo::default()
    };
    let target = world.server_address(0).parse().unwrap();
    let mut probe = vec![0; 100];
    let addresses = (POD.parse().unwrap(), target);
    let len = tunnel_proto::echo::request(addresses, 1, info, 0, &mut probe).unwrap();
    probe.truncate(len);
    world.client_sends(0, probe);
    world.run_for(ms(20));
    let status = &world.servers[0].engine.status(world.now).peers[0];
    assert_eq!((status.draining, status.mtu), (false, 1420));
}

#[test]
fn streams_of_strangers_are_bounded_and_end() {
    let mut world = World::new(1, 1, Mode::Auto);
    world.run_for(ms(1000));
    for _ in 0..1000 {
        world.stranger();
    }
    assert_eq!(
        world.servers[0].engine.status(world.now).strangers,
        MAX_UNPROVEN
    );
    assert!(world.carries(0, 1));
    world.run_for(ms(11_000));
    assert_eq!(world.servers[0].engine.status(world.now).strangers, 0);
    assert_eq!(world.transport(0, 0), Some(Transport::Udp));
}

#[test]
fn a_stream_that_went_silent_is_closed() {
    let mut world = World::new(1, 1, Mode::Tcp);
    world.run_for(ms(1000));
    assert_eq!(
        world.servers[0].engine.status(world.now).peers[0]
            .links
            .len(),
        1
    );
    world.clients[0].dead = true;
    world.run_for(ms(61_000));
    assert_eq!(
        world.servers[0].engine.status(world.now).peers[0]
            .links
            .len(),
        0
    );
}

#[test]
fn the_server_stays_on_the_clients_link_over_rekeys() {
    let mut world = World::new(1, 1, Mode::Auto);
    world.run_for(ms(3000));
    let before = world.servers[0].engine.counts().path_changes;
    for _ in 0..600 {
        assert!(world.carries(0, 1));
        world.run_for(ms(1000));
    }
    let engine = &world.servers[0].engine;
    assert!(engine.counts().handshakes > 4, "{:?}", engine.counts());
    assert_eq!(engine.counts().path_changes, before);
}

#[test]
fn a_hole_that_appears_under_the_servers_packets_is_found() {
    let mut world = World::new(1, 1, Mode::Auto);
    world.run_for(ms(3000));
    let source = world.server_address(0);
    world.server_sends(0, packet(&source, POD, flags::SYN, 0));
    world.largest = Some(1400);
    for _ in 0..200 {
        world.server_sends(0, packet(&source, POD, flags::ACK, 1380));
        world.run_for(ms(25));
    }
    let mtu = world.servers[0].engine.status(world.now).peers[0].mtu;
    assert!((1280..=1368).contains(&mtu), "{mtu}");
}

#[test]
fn a_flow_that_nobody_answered_leaves_a_client_that_died() {
    let mut world = World::new(1, 2, Mode::Auto);
    world.run_for(ms(2000));
    let source = world.server_address(0);
    world.clients[0].dead = true;
    for port in 0..16 {
        world.server_sends_port(0, &source, POD, flags::SYN, port);
    }
    world.run_for(ms(3000));
    world.take_at_client(1);
    for port in 0..16 {
        world.server_sends_port(0, &source, POD, flags::SYN, port);
    }
    world.run_for(ms(50));
    assert_eq!(
        world.take_at_client(1).len(),
        16,
        "repeated, by the other one"
    );
}

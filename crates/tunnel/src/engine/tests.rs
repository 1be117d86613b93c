//! Two ends and what is between them, in simulated time.

mod health;
mod simulation;
mod streams;
pub(crate) mod support;

use std::time::Duration;

use tunnel_proto::echo::{self, ProbeInfo};
use tunnel_proto::ip::transport::{Tcp, flags};
use tunnel_proto::ip::{Header, mss};
use tunnel_proto::path::{Mode, Transport};

use super::*;
use simulation::{Simulation, ms};
use support::{packet, tcp};

const POD: &str = "100.96.0.5";
/// The address of the first server.
const SERVER: &str = "192.168.123.1";

#[test]
fn flow_from_server_is_answered_by_shoot() {
    let mut sim = Simulation::connected();
    assert_eq!(sim.transport(0, 0), Some(Transport::Udp));
    let arrived = sim.carried(packet(SERVER, POD, flags::SYN, 1000));
    assert_eq!(arrived.len(), 1);
    let header = Header::parse(&arrived[0]).unwrap();
    let segment = Tcp::new(header.segment(&arrived[0])).unwrap();
    assert_eq!(segment.flags(), flags::SYN);
    sim.client_sends(0, packet(POD, SERVER, flags::SYN | flags::ACK, 1000));
    sim.run_for(ms(100));
    assert_eq!(sim.at_server(0).len(), 1);
}

#[test]
fn shoot_opens_no_flow_toward_seed() {
    let mut sim = Simulation::connected();
    sim.client_sends(0, packet(POD, SERVER, flags::SYN, 0));
    sim.client_sends(0, packet(POD, SERVER, flags::ACK, 100));
    sim.client_sends(0, packet("192.168.123.64", SERVER, flags::SYN, 0));
    sim.run_for(ms(100));
    assert!(sim.at_server(0).is_empty());
    let refused = sim.servers[0].engine.filter().unwrap().refused();
    assert_eq!(refused.map(|(_, n)| n).sum::<u64>(), 3);
}

#[test]
fn packets_with_foreign_inner_source_are_dropped() {
    let mut sim = Simulation::connected();
    for source in ["9.9.9.9", "192.168.123.65", SERVER] {
        sim.client_sends(0, packet(source, SERVER, flags::ACK, 0));
    }
    sim.run_for(ms(100));
    assert!(sim.at_server(0).is_empty());
    assert_eq!(sim.dropped_at_server(0, "source"), 3);
}

#[test]
fn udp_is_used_when_open_and_left_when_dead() {
    let mut sim = Simulation::new(1, 1, Mode::Auto);
    sim.udp = false;
    sim.run_for(ms(1000));
    assert_eq!(sim.transport(0, 0), Some(Transport::Tcp));
    assert_eq!(sim.healthy(), [true, true]);
    sim.run_for(ms(9000));
    let expect = |sim: &Simulation, transport, changes| {
        assert_eq!(sim.transports(), [Some(transport); 2]);
        let ends = [&sim.clients[0], &sim.servers[0]];
        assert_eq!(ends.map(|end| end.engine.counts().path_changes), changes);
    };
    sim.udp = true;
    sim.run_for(ms(30_000));
    expect(&sim, Transport::Udp, [1, 1]);
    sim.udp = false;
    sim.run_for(ms(2000));
    expect(&sim, Transport::Tcp, [2, 2]);
}

#[test]
fn transport_change_keeps_flow_without_handshake() {
    let mut sim = Simulation::after(Mode::Auto, ms(2000));
    sim.server_sends(0, packet(SERVER, POD, flags::SYN, 0));
    sim.run_for(ms(50));
    let handshakes = sim.clients[0].engine.counts().handshakes;
    sim.udp = false;
    sim.run_for(ms(2000));
    sim.server_sends(0, packet(SERVER, POD, flags::ACK, 100));
    sim.run_for(ms(50));
    sim.client_sends(0, packet(POD, SERVER, flags::ACK, 100));
    sim.run_for(ms(50));
    assert_eq!((sim.at_client(0).len(), sim.at_server(0).len()), (2, 1));
    assert_eq!(sim.clients[0].engine.counts().handshakes, handshakes);
}

#[test]
fn sessions_are_renewed_while_packets_flow() {
    let mut sim = Simulation::after(Mode::Auto, ms(3000));
    let counts = |sim: &Simulation| {
        let ends = [&sim.clients[0], &sim.servers[0]];
        let [client, server] = ends.map(|end| end.engine.counts());
        (client.handshakes, server.path_changes)
    };
    let (handshakes, path_changes) = counts(&sim);
    for _ in 0..600 {
        assert!(sim.carries(0, 1));
        sim.run_for(ms(1000));
    }
    let after = counts(&sim);
    let expected = handshakes + 4..handshakes + 9;
    assert!(expected.contains(&after.0), "{after:?}");
    assert_eq!(after.1, path_changes);
    assert_eq!(sim.transport(0, 0), Some(Transport::Udp));
    sim.was_down_less_than(0, ms(1));
}

#[test]
fn restarted_server_is_found_again() {
    for udp in [true, false] {
        let mut sim = Simulation::new(1, 1, Mode::Auto);
        sim.udp = udp;
        sim.run_for(ms(5000));
        sim.restart_server(0);
        sim.run_for(ms(4000));
        assert_eq!(sim.healthy(), [true, true], "{udp}");
    }
}

#[test]
fn new_flows_avoid_draining_client_and_old_stay() {
    let mut sim = Simulation::new(1, 2, Mode::Auto);
    sim.run_for(ms(2000));
    let arrived = |sim: &mut Simulation| {
        sim.run_for(ms(100));
        [0, 1].map(|client| sim.take_at_client(client).len())
    };
    sim.server_opens(0..32);
    let first = arrived(&mut sim);
    assert_eq!(first.iter().sum::<usize>(), 32);
    assert!(first.iter().all(|share| *share > 4), "{first:?}");
    sim.drain_client(0);
    sim.run_for(ms(200));
    sim.server_opens(100..132);
    for port in 0..32 {
        sim.server_sends_port(port, flags::ACK);
    }
    assert_eq!(arrived(&mut sim), [first[0], first[1] + 32]);
    assert_eq!(sim.client_status(0).flows as usize, first[0]);
}

#[test]
fn new_flows_avoid_client_that_cannot_forward() {
    let mut sim = Simulation::new(1, 2, Mode::Auto);
    sim.run_for(ms(2000));
    let mut port = 0;
    let mut shares = |sim: &mut Simulation| {
        sim.run_for(ms(200));
        sim.server_opens(port..port + 32);
        port += 32;
        sim.run_for(ms(100));
        [0, 1].map(|client| sim.take_at_client(client).len())
    };
    sim.settle_client(0, false);
    assert_eq!(shares(&mut sim), [0, 32]);
    sim.settle_client(0, true);
    let both = shares(&mut sim);
    assert!(both.iter().all(|share| *share > 4), "{both:?}");
    // One that drains is better, and one that cannot is better than none.
    sim.settle_client(0, false);
    sim.drain_client(1);
    assert_eq!(shares(&mut sim), [0, 32]);
    sim.clients[1].dead = true;
    sim.run_for(ms(3000));
    assert_eq!(shares(&mut sim), [32, 0]);
}

#[test]
fn unanswered_flow_leaves_client_that_cannot_forward() {
    let mut sim = Simulation::new(1, 2, Mode::Auto);
    sim.run_for(ms(2000));
    sim.server_opens(0..32);
    sim.run_for(ms(100));
    sim.take_at_client(1);
    sim.settle_client(0, false);
    sim.run_for(ms(200));
    // TCP repeats its SYN.
    sim.server_opens(0..32);
    sim.run_for(ms(100));
    assert_eq!(sim.take_at_client(1).len(), 32);
}

/// Opens answered flows by both clients, has the first one end after a drain, and returns how many packets
/// of its flows arrive at the other one within `wait`.
fn moved_after_end(says_so: bool, wait: u64) -> (usize, usize) {
    let mut sim = Simulation::new(1, 2, Mode::Auto);
    sim.run_for(ms(2000));
    sim.server_opens(0..32);
    sim.run_for(ms(100));
    let arrived = [0, 1].map(|client| sim.take_at_client(client));
    let source = sim.server_address(0);
    for (client, packets) in arrived.iter().enumerate() {
        for packet in packets {
            let port = u16::from_be_bytes([packet[20], packet[21]]);
            let reply = tcp(POD, &source, (443, port), flags::SYN | flags::ACK, &[], 0);
            sim.client_sends(client, reply);
        }
    }
    sim.drain_client(0);
    sim.run_for(ms(1000));
    if says_so {
        sim.close_client(0);
        sim.run_for(ms(100));
    }
    sim.clients[0].dead = true;
    sim.run_for(ms(wait));
    for port in 0..32 {
        sim.server_sends_port(port, flags::ACK);
    }
    sim.run_for(ms(100));
    let moved = sim.take_at_client(1).len();
    (arrived[0].len(), moved.saturating_sub(arrived[1].len()))
}

#[test]
fn flows_leave_client_that_said_it_ends() {
    let (had, moved) = moved_after_end(true, 0);
    assert!(had > 4 && moved == had, "{moved} of {had}");
}

#[test]
fn flows_leave_drained_client_that_is_silent() {
    let (had, moved) = moved_after_end(false, 5000);
    assert!(had > 4 && moved == had, "{moved} of {had}");
}

#[test]
fn flows_stay_with_draining_client_that_was_silent_for_a_moment() {
    let mut sim = Simulation::new(1, 2, Mode::Auto);
    sim.run_for(ms(2000));
    sim.server_opens(0..32);
    sim.run_for(ms(100));
    let had = [0, 1].map(|client| sim.take_at_client(client).len());
    sim.drain_client(0);
    sim.run_for(ms(1000));
    sim.clients[0].dead = true;
    sim.run_for(ms(2500));
    sim.clients[0].dead = false;
    sim.run_for(ms(2000));
    for port in 0..32 {
        sim.server_sends_port(port, flags::ACK);
    }
    sim.run_for(ms(100));
    assert_eq!([0, 1].map(|client| sim.take_at_client(client).len()), had);
}

#[test]
fn client_keeps_silent_servers_flows_30_s() {
    let mut sim = Simulation::after(Mode::Auto, ms(2000));
    sim.server_opens(7..8);
    sim.run_for(ms(2000));
    let flows = |sim: &Simulation| {
        let peer = sim.client_status(0);
        (peer.healthy, peer.flows)
    };
    assert_eq!(flows(&sim), (true, 1));
    sim.servers[0].dead = true;
    sim.run_for(ms(25_000));
    assert_eq!(flows(&sim), (false, 1));
    sim.run_for(ms(5000));
    assert_eq!(flows(&sim), (false, 0));
}

#[test]
fn new_flows_avoid_dead_client_after_3_s() {
    for dead in [0, 1] {
        let mut sim = Simulation::new(1, 2, Mode::Auto);
        sim.run_for(ms(2000));
        sim.clients[dead].dead = true;
        sim.server_opens(0..16);
        sim.run_for(ms(3000));
        for ports in [16..32, 0..16] {
            sim.take_at_client(1 - dead);
            sim.server_opens(ports.clone());
            sim.run_for(ms(100));
            assert_eq!(sim.take_at_client(1 - dead).len(), 16, "{ports:?}");
        }
    }
}

#[test]
fn rotation_loses_nothing_with_either_key() {
    let mut sim = Simulation::connected();
    let (old, new) = (support::key(1), support::key(101));
    // First every peer is given the new key, then it is used, then the old one is removed.
    sim.rotate_client_key(&[&old, &new], &[&old]);
    sim.run_for(ms(2000));
    sim.rotate_client_key(&[&old, &new], &[&new, &old]);
    sim.run_for(ms(40_000));
    sim.rotate_client_key(&[&new], &[&new]);
    sim.run_for(ms(5000));
    sim.was_down_less_than(0, ms(1));
    let arrived = sim.carried(packet(SERVER, POD, flags::SYN, 0));
    assert_eq!(arrived.len(), 1);
}

/// A path that carries UDP datagrams of 1400 bytes, which is known.
fn narrow() -> Simulation {
    let mut sim = Simulation::new(1, 1, Mode::Auto);
    sim.largest = Some(1400);
    sim.run_for(ms(8000));
    sim
}

#[test]
fn syn_mss_is_clamped_to_path_mtu() {
    let mut sim = narrow();
    let mtu = sim.client_status(0).mtu;
    assert!((1300..=1368).contains(&mtu), "{mtu}");
    let mut arrived = sim.carried(support::syn_with_mss(SERVER, POD, 1460));
    let arrived = &mut arrived[0];
    let header = Header::parse(arrived).unwrap();
    assert_eq!(mss::clamp(&header, arrived, 100), Some(mtu - 40));
}

#[test]
fn path_too_small_for_udp_uses_tcp() {
    let mut sim = Simulation::new(1, 1, Mode::Auto);
    sim.largest = Some(1280);
    sim.run_for(ms(5000));
    assert_eq!(sim.transport(0, 0), Some(Transport::Tcp));
}

#[test]
fn too_large_a_packet_is_answered_on_the_device() {
    let mut sim = narrow();
    sim.server_sends(0, packet(SERVER, POD, flags::SYN, 0));
    let arrived = sim.carried(packet(SERVER, POD, flags::ACK, 1380));
    assert_eq!(arrived.len(), 1, "the SYN alone");
    let answers = sim.at_server(0);
    assert_eq!(answers.len(), 1);
    assert_eq!(Header::parse(&answers[0]).unwrap().protocol, 1);
}

#[test]
fn invalid_identity_changes_nothing() {
    let mut sim = Simulation::connected();
    let good = sim.server_identity(0);
    type Spoil = fn(&mut Identity);
    let faults: [(&str, Spoil); 5] = [
        ("private key", |it| it.keys.clear()),
        ("two peers are named", |it| {
            it.peers.push(it.peers[0].clone())
        }),
        ("no public key", |it| it.peers[0].public_keys.clear()),
        ("pairs of an own key", |it| {
            it.keys = (1..=17).map(support::key).collect();
        }),
        ("both have the address", |it| {
            let mut other = it.peers[0].clone();
            other.name = "other".to_owned();
            other.public_keys = vec![support::key(9).public()];
            it.peers.push(other);
        }),
    ];
    for (text, spoil) in faults {
        let mut identity = good.clone();
        spoil(&mut identity);
        let now = sim.now;
        let error = sim.servers[0].engine.replace(now, identity).unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
    }
    sim.run_for(ms(3000));
    assert_eq!(sim.healthy(), [true, true]);
}

#[test]
fn junk_from_network_and_device_is_harmless() {
    let mut sim = Simulation::connected();
    let mut random = support::random_bytes(1);
    for len in 0..1600 {
        let bytes: Vec<u8> = (0..len).map(|_| random()).collect();
        for first in 0..6 {
            let mut bytes = bytes.clone();
            if let Some(byte) = bytes.first_mut() {
                *byte = first;
            }
            sim.junk(bytes);
        }
    }
    sim.run_for(ms(3000));
    assert_eq!(sim.healthy(), [true, true]);
    assert!(sim.at_server(0).is_empty() && sim.at_client(0).is_empty());
}

#[test]
fn keys_that_are_added_disturb_no_other_peer() {
    // One client drains, so that flows go to the other one.
    for client in [0, 1] {
        let mut sim = Simulation::new(1, 2, Mode::Auto);
        sim.run_for(ms(1000));
        sim.drain_client(1 - client);
        sim.run_for(ms(500));
        assert!(sim.carries(client, 1));
        sim.server_keys(&[50, 60], &[&[1], &[2]]);
        sim.run_for(ms(1000));
        assert!(sim.carries(client, 2), "with another own key");
        sim.server_keys(&[50, 60], &[&[1, 101], &[2]]);
        sim.run_for(ms(1000));
        assert!(sim.carries(client, 3), "with another key of a client");
        sim.client_keys(client, &[1 + client as u8], &[60, 50]);
        sim.run_for(ms(3000));
        assert!(sim.carries(client, 4), "with the new key preferred");
        sim.was_down_less_than(client, ms(1));
    }
}

#[test]
fn key_lost_by_server_is_replaced_by_known_one() {
    for order in [[50, 60], [60, 50]] {
        let mut sim = Simulation::new(1, 1, Mode::Auto);
        sim.server_keys(&[50, 60], &[&[1]]);
        sim.client_keys(0, &[1], &order);
        sim.run_for(ms(3000));
        assert!(sim.carries(0, 1));
        let gone = order[0];
        sim.server_keys(&[110 - gone], &[&[1]]);
        sim.run_for(ms(5000));
        assert!(sim.carries(0, 2), "without {gone}");
        sim.was_down_less_than(0, ms(4000));
        sim.run_for(ms(60_000));
        assert_eq!(sim.healthy(), [true, true]);
    }
}

#[test]
fn udp_dead_one_way_is_left_within_two_seconds() {
    for to_servers in [true, false] {
        let mut sim = Simulation::after(Mode::Auto, ms(3000));
        assert!(sim.carries(0, 1));
        sim.udp_to_servers = !to_servers;
        sim.udp_to_clients = to_servers;
        sim.run_for(ms(2000));
        let used = sim.transports();
        assert_eq!(used, [Some(Transport::Tcp); 2], "{to_servers}");
        assert!(sim.carries(0, 2));
    }
}

#[test]
fn packets_fit_path_once_its_mtu_is_known() {
    let mut sim = narrow();
    sim.server_sends(0, packet(SERVER, POD, flags::SYN, 0));
    sim.run_for(ms(20));
    sim.largest_sent = 0;
    for _ in 0..400 {
        for data in [1328, 1340, 1380] {
            sim.server_sends(0, packet(SERVER, POD, flags::ACK, data));
            sim.client_sends(0, packet(POD, SERVER, flags::ACK, data));
        }
        sim.run_for(ms(20));
    }
    assert!(sim.largest_sent <= 1400, "{}", sim.largest_sent);
    assert!(sim.at_client(0).len() > 300, "what fits goes through");
}

#[test]
fn probes_forged_by_pods_are_ignored() {
    let mut sim = Simulation::connected();
    let info = ProbeInfo {
        draining: true,
        mtu: 1280,
        ..ProbeInfo::default()
    };
    let mut probe = vec![0; 100];
    let addresses = (POD.parse().unwrap(), SERVER.parse().unwrap());
    let len = echo::request(addresses, 1, info, 0, &mut probe).unwrap();
    probe.truncate(len);
    sim.client_sends(0, probe);
    sim.run_for(ms(20));
    let status = &sim.servers[0].engine.status(sim.now).peers[0];
    assert_eq!((status.draining, status.mtu), (false, 1420));
}

#[test]
fn peer_stays_healthy_while_link_changes() {
    let mut sim = Simulation::new(1, 1, Mode::Auto);
    sim.udp = false;
    sim.run_for(ms(5000));
    assert_eq!(sim.transport(0, 0), Some(Transport::Tcp));
    sim.udp = true;
    while sim.transport(0, 0) != Some(Transport::Udp) {
        sim.run_for(ms(1));
    }
    for _ in 0..100 {
        assert_eq!(sim.healthy(), [true, true]);
        sim.run_for(ms(1));
    }
}

#[test]
fn hole_under_packets_is_found_in_five_seconds() {
    for (mode, from_server) in [(Mode::Auto, true), (Mode::Udp, true), (Mode::Udp, false)] {
        let mut sim = Simulation::after(mode, ms(3000));
        sim.server_sends(0, packet(SERVER, POD, flags::SYN, 0));
        sim.largest = Some(1400);
        for _ in 0..200 {
            if from_server {
                sim.server_sends(0, packet(SERVER, POD, flags::ACK, 1380));
            } else {
                let answer = tcp(POD, SERVER, (443, 2000), flags::ACK, &[], 1380);
                sim.client_sends(0, answer);
            }
            sim.run_for(ms(25));
        }
        for end in [&sim.servers[0].engine, &sim.clients[0].engine] {
            let peer = &end.status(sim.now).peers[0];
            assert_eq!(peer.transport, Some(Transport::Udp), "{mode:?}");
            assert!((1280..=1368).contains(&peer.mtu), "{mode:?} {}", peer.mtu);
        }
    }
}

const MODES: [Mode; 3] = [Mode::Auto, Mode::Tcp, Mode::Udp];

/// Expects that both ends are healthy and that a flow of this port works at once.
fn is_followed(sim: &mut Simulation, port: u16) {
    assert_eq!(sim.healthy(), [true, true], "client, server");
    assert!(sim.carries(0, port));
}

#[test]
fn server_follows_client_after_index_restart() {
    for mode in MODES {
        let mut sim = Simulation::after(mode, Duration::from_secs(600));
        is_followed(&mut sim, 1);
        // Until no session is left and an older initiation is taken, as of a client whose clock went
        // back: the server begins its indices again.
        sim.clients[0].dead = true;
        sim.run_for(Duration::from_secs(185));
        let handshakes = |sim: &Simulation| sim.servers[0].engine.counts().handshakes;
        let before = handshakes(&sim);
        sim.replay_initiation();
        assert_eq!(handshakes(&sim), before + 1, "{mode:?}");
        sim.restart_client(0);
        sim.run_for(ms(3000));
        is_followed(&mut sim, 2);
    }
}

#[test]
fn server_follows_client_that_restarts_often() {
    for mode in MODES {
        let mut sim = Simulation::new(1, 1, mode);
        for port in 0..300 {
            sim.run_for(ms(2000));
            is_followed(&mut sim, port);
            sim.restart_client(0);
        }
    }
}

#[test]
fn server_follows_client_after_one_way_loss() {
    for minutes in [1, 3, 5, 20] {
        let mut sim = Simulation::after(Mode::Udp, ms(3000));
        is_followed(&mut sim, 1);
        sim.udp_to_clients = false;
        sim.run_for(Duration::from_secs(60 * minutes));
        sim.udp_to_clients = true;
        sim.run_for(Duration::from_secs(20));
        is_followed(&mut sim, 2);
    }
}

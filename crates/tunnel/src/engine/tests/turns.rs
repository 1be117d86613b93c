//! Two connections by TCP in turns, and the padding ahead of the first turn of the second.

use tunnel_proto::ip::transport::flags;
use tunnel_proto::path::Mode;

use super::super::*;
use super::POD;
use super::packets::packet;
use super::world::{Who, World, ms};

#[test]
fn a_busy_tunnel_by_tcp_has_two_connections_in_turns_and_the_server_follows() {
    let mut world = World::new(1, 1, Mode::Tcp);
    world.run_for(ms(2000));
    let source = world.server_address(0);
    world.server_sends(0, packet(&source, POD, flags::SYN, 0));
    world.run_for(ms(100));
    world.take_at_client(0);
    let active = |world: &World| {
        let ends = [&world.clients[0].engine, &world.servers[0].engine];
        ends.map(|end| {
            let links = &end.status(world.now).peers[0].links;
            links.iter().position(|link| link.active)
        })
    };
    let changes = |world: &World| {
        let ends = [&world.clients[0].engine, &world.servers[0].engine];
        ends.map(|end| end.counts().path_changes)
    };
    let (first, before) = (active(&world), changes(&world));
    assert_eq!(first, [Some(0), Some(0)]);
    let mut turns = vec![first];
    for _ in 0..60 * 4 {
        for _ in 0..128 {
            world.server_sends(0, packet(&source, POD, flags::ACK, 100));
        }
        world.run_for(ms(250));
        assert_eq!(world.take_at_client(0).len(), 128);
        if turns.last() != Some(&active(&world)) {
            turns.push(active(&world));
        }
    }
    let second = [Some(1), Some(1)];
    assert!(turns.len() >= 6, "{turns:?}");
    let count = turns.len() as u64 - 1;
    for (number, turn) in turns.into_iter().enumerate() {
        assert_eq!(turn, if number % 2 == 0 { first } else { second });
    }
    assert_eq!(changes(&world), before, "one path");
    assert_eq!(world.clients[0].engine.counts().turns, count);

    world.lossy = true;
    for _ in 0..20 * 4 {
        for _ in 0..128 {
            world.server_sends(0, packet(&source, POD, flags::ACK, 100));
        }
        world.run_for(ms(250));
        assert_eq!(world.take_at_client(0).len(), 128);
    }
    let status = world.clients[0].engine.status(world.now);
    assert!(status.peers[0].turns_withheld);
    assert_eq!(status.peers[0].links.len(), 1, "{status:?}");
}

/// Has the only server send a good deal for so long.
fn keep_busy(world: &mut World, time: Duration) {
    let (source, end) = (world.server_address(0), world.now + time);
    while world.now < end {
        for _ in 0..128 {
            world.server_sends(0, packet(&source, POD, flags::ACK, 100));
        }
        world.run_for(ms(250));
    }
}

/// Returns a world whose tunnel is busy by TCP for so long, and the streams that it has.
fn busy(time: Duration) -> (World, Vec<StreamId>) {
    let mut world = World::new(1, 1, Mode::Tcp);
    world.run_for(ms(2000));
    let source = world.server_address(0);
    world.server_sends(0, packet(&source, POD, flags::SYN, 0));
    keep_busy(&mut world, time);
    let links = &world.clients[0].engine.peers[0].as_ref().unwrap().links;
    let stream = |link: &peer::Link| match link.remote {
        Remote::Stream(stream) => stream,
        Remote::Udp { .. } | Remote::Wrapped { .. } => unreachable!("by TCP"),
    };
    let streams = links.iter().map(stream).collect();
    (world, streams)
}

#[test]
fn a_second_connection_carries_padding_once_ahead_of_its_turn() {
    let (world, streams) = busy(ms(60_000));
    let [_, second] = streams[..] else {
        panic!("{streams:?}");
    };
    // The kernel counts twice as many received as sent here.
    let [
        (Who::Client(0), by_client, sent),
        (Who::Server(0), by_server, asked_for),
    ] = world.padded[..]
    else {
        panic!("{:?}", world.padded);
    };
    assert_eq!((by_client, by_server), (second, second));
    assert!((1..=path::MOST_PADDING as usize).contains(&sent));
    assert!((sent * 2).abs_diff(asked_for) <= 2, "{sent} {asked_for}");
    assert!(world.clients[0].engine.counts().turns >= 5);
}

#[test]
fn no_more_padding_is_sent_than_is_due_and_none_to_strangers_or_by_a_stream_in_use() {
    let (mut world, streams) = busy(ms(7000));
    let [first, second] = streams[..] else {
        panic!("{streams:?}");
    };
    assert_eq!(world.clients[0].engine.counts().turns, 0);
    world.padded.clear();
    world.request_padding(second, 1000); // it just has been
    world.request_padding(first, 1000);
    let stranger = world.stranger();
    world.request_padding(stranger, 1000);
    world.request_padding(StreamId(u64::MAX), 1000);
    assert_eq!(world.padded, []);
    world.run_for(PADDED);
    assert_eq!(world.clients[0].engine.counts().turns, 1);
    world.request_padding(second, 1000);
    world.request_padding(first, u32::MAX);
    world.request_padding(first, 1000);
    let most = path::MOST_PADDING as usize;
    assert_eq!(world.padded, [(Who::Server(0), first, most)]);
    // The bound is the client's, not a stream's.
    keep_busy(&mut world, PADDED - ms(500));
    assert_eq!(world.clients[0].engine.counts().turns, 2);
    world.request_padding(second, 1000);
    assert_eq!(world.padded.len(), 1);
    keep_busy(&mut world, ms(750));
    for stream in [first, second] {
        world.request_padding(stream, 1000); // one of which is in use
    }
    assert_eq!(world.padded.len(), 2);
}

//! What is held in memory beyond what counts.

use bytes::{Bytes, BytesMut};
use knp_proto::frame::Deframer;
use knp_proto::{Extensions, LinkConfig, Read};

use crate::world::{End, World};

const KIB: usize = 1 << 10;

/// A world with one tunnel, and `len` bytes waiting for its server's socket.
fn waiting(len: usize) -> World {
    let mut world = World::new(Extensions::ALL, LinkConfig::default());
    world.answer_dials = true;
    world.dial(0);
    world.settle();
    assert_eq!(world.write(End::Agent, 0, len), len);
    while world.transmit(End::Agent) | world.deliver(End::Server) {}
    world
}

/// A socket that takes all but one byte of a piece keeps it in memory.
#[test]
fn piece_in_hand_counts_until_it_is_gone() {
    let mut world = waiting(60 * KIB);
    let (id, now) = (world.server.sockets[&0].id, world.now);
    let link = &mut world.server.link;
    let Ok(Read::Data(piece)) = link.read(id, usize::MAX) else {
        panic!("nothing to read");
    };
    assert_eq!(piece.len(), 60 * KIB);
    link.consumed(now, id, piece.len() - 1);
    assert_eq!(world.server.tenant.buffered_bytes(), 60 * KIB);
    world.server.link.consumed(now, id, 1);
    assert_eq!(world.server.tenant.buffered_bytes(), 0);
}

/// A peer's credit may leave a few bytes of a piece behind.
#[test]
fn rest_of_a_piece_keeps_no_large_buffer() {
    let mut world = waiting(1);
    let (id, now) = (world.agent.sockets[&0].id, world.now);
    let buffer = Bytes::from(vec![7; 64 * KIB]);
    // All of the initial window, of which one byte is used.
    for len in [50, 50, 50, 50, 56] {
        world
            .agent
            .link
            .write(id, buffer.slice(..len * KIB))
            .unwrap();
    }
    let mut message = BytesMut::new();
    while world.agent.link.poll_transmit(now, &mut message).is_some() {}
    assert!(buffer.is_unique());
}

/// A piece of 4 KiB or more was kept as the slice it is of what was read with it.
#[test]
fn waiting_pieces_keep_no_large_buffer() {
    let mut world = waiting(1);
    let buffer = Bytes::from(vec![7; 128 * KIB]);
    let id = world.agent.sockets[&0].id;
    for len in [1, 5 * KIB, 20 * KIB, 31 * KIB] {
        world.agent.link.write(id, buffer.slice(..len)).unwrap();
    }
    assert!(buffer.is_unique());
}

#[test]
fn incomplete_message_keeps_no_large_buffer() {
    let buffer = Bytes::from(vec![7; 128 * KIB]);
    let mut deframer = Deframer::new(256 * KIB);
    deframer.push(Bytes::from_static(&[0, 0, 1, 0, 0]));
    for at in 0..buffer.len() / 2 - 1 {
        deframer.push(buffer.slice(at..at + 1));
        assert_eq!(deframer.next_message(), Ok(None));
    }
    assert!(buffer.is_unique());
    for len in [1, 4 * KIB, 20 * KIB, 64 * KIB] {
        // Alone, behind a message, and behind a part of one.
        let whole = Bytes::from([&[0, 0, 0, 0, 1, 7, 0, 0, 4, 0, 0], &buffer[..len]].concat());
        let mut deframer = Deframer::new(256 * KIB);
        deframer.push(whole.clone());
        assert_eq!(deframer.next_message().unwrap().unwrap().len(), 1);
        assert_eq!(deframer.next_message(), Ok(None));
        deframer.push(buffer.slice(..len));
        assert_eq!(deframer.next_message(), Ok(None));
        assert_eq!(deframer.len(), 5 + 2 * len);
        assert!(whole.is_unique() && buffer.is_unique());
    }
    deframer.push(buffer.slice(..));
    let message = deframer.next_message().unwrap().unwrap();
    assert_eq!(message.len(), 64 * KIB);
}

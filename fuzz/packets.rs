//! What a stream of packets must hold to, as plain functions that panic when it does not.
//!
//! ```text
//! fuzz_targets/knp_stream.rs ─────(exploring)────────┬──▶ stream
//! crates/knp-proto/tests/replay.rs ──────────────────┘
//! ```
//!
//! An input is what a peer sends on one gRPC stream: messages with their heads of five bytes.

use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use knp_proto::frame::{Deframer, FrameError};
use knp_proto::{
    Budget, DialId, DialTarget, Event, Extensions, GrpcFrontend, Link, LinkConfig, Packet, Read,
    StreamId, Tenant, TenantId, TenantLimits, TunnelId,
};
use std::sync::Arc;

/// Bytes of a message at most.
const MAX_MESSAGE: usize = 1 << 16;

/// Framing does not depend on how the stream is cut, packets read back as they were written, and
/// whatever comes leaves nothing behind at either end of a link, nor at a frontend.
pub(crate) fn stream(input: &[u8]) {
    let (messages, error) = deframe(input, input.len().max(1));
    for piece in [1, 2, 7] {
        assert_eq!(deframe(input, piece), (messages.clone(), error));
    }
    let packets: Vec<Packet> = messages
        .into_iter()
        .map_while(|message| Packet::decode(message).ok())
        .collect();
    for packet in &packets {
        read_back(packet);
    }
    for extensions in [Extensions::default(), Extensions::ALL] {
        server(&packets, extensions);
        agent(&packets, extensions);
    }
    frontend(&packets);
}

fn deframe(input: &[u8], piece: usize) -> (Vec<Bytes>, Option<FrameError>) {
    let mut deframer = Deframer::new(MAX_MESSAGE);
    let mut messages = Vec::new();
    for piece in input.chunks(piece) {
        deframer.push(Bytes::copy_from_slice(piece));
        loop {
            match deframer.next_message() {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => break,
                Err(error) => return (messages, Some(error)),
            }
        }
    }
    (messages, None)
}

/// Packets that mean something are written as they were read.
fn read_back(packet: &Packet) {
    if matches!(packet, Packet::Unknown { .. } | Packet::Empty) {
        return;
    }
    let mut buf = BytesMut::new();
    packet.clone().encode(&mut buf);
    assert_eq!(Packet::decode(buf.freeze()).as_ref(), Ok(packet));
}

fn tenant() -> (Arc<Budget>, Arc<Tenant>) {
    let budget = Budget::new(1 << 20);
    let limits = TenantLimits {
        agents: 1,
        buffered_bytes: 1 << 20,
        dials_per_second: 0,
        pending_dials: 8,
        tunnels: 16,
    };
    let tenant = Tenant::new(TenantId::new("fuzz"), limits, Arc::clone(&budget));
    (budget, tenant)
}

#[expect(
    clippy::disallowed_methods,
    reason = "where a clock starts that is moved by hand"
)]
fn start() -> Instant {
    Instant::now()
}

/// A server with three dials under way, to which the input is the agent.
fn server(packets: &[Packet], extensions: Extensions) {
    let (budget, tenant) = tenant();
    let config = LinkConfig::default();
    let mut link = Link::server(&tenant, StreamId(1), extensions, config).unwrap();
    let now = start();
    for random in 1..=3 {
        let target = DialTarget {
            protocol: "tcp".to_owned(),
            address: "a:1".to_owned(),
        };
        link.dial(now, DialId(random), target).unwrap();
    }
    feed(&mut link, now, packets, |_, _, _| {});
    close(link, &tenant, &budget, now);
}

/// An agent, to which the input is the server; every other dial succeeds.
fn agent(packets: &[Packet], extensions: Extensions) {
    let (budget, tenant) = tenant();
    let mut link = Link::agent(&tenant, StreamId(1), extensions, LinkConfig::default());
    let now = start();
    let mut dials = 0;
    feed(&mut link, now, packets, |link, now, event| {
        if let Event::Dial(tunnel, _) = event {
            dials += 1;
            let result = if dials % 2 == 1 {
                Ok(())
            } else {
                Err("refused".to_owned())
            };
            let _ = link.dialed(now, tunnel, result);
        }
    });
    close(link, &tenant, &budget, now);
}

/// Feeds the packets, and is a socket that takes what comes and sends it back.
fn feed(
    link: &mut Link,
    now: Instant,
    packets: &[Packet],
    mut other: impl FnMut(&mut Link, Instant, Event),
) {
    let mut buf = BytesMut::new();
    for packet in packets {
        if link.handle_packet(now, packet.clone()).is_err() {
            return;
        }
        while let Some(event) = link.poll_event() {
            if let Event::Readable(tunnel) = event {
                echo(link, now, tunnel);
            } else {
                other(link, now, event);
            }
        }
        while link.poll_transmit(now, &mut buf).is_some() {
            buf.clear();
        }
        assert!(
            !link.has_transmit(),
            "there is something to send that is not sent"
        );
    }
}

fn echo(link: &mut Link, now: Instant, tunnel: TunnelId) {
    while let Ok(Read::Data(data)) = link.read(tunnel, 1024) {
        let len = data.len();
        if link.write_capacity(tunnel) >= len {
            let _ = link.write(tunnel, data);
        }
        link.consumed(now, tunnel, len);
    }
}

/// However it was, nothing is held once all have let go.
fn close(mut link: Link, tenant: &Tenant, budget: &Budget, now: Instant) {
    assert!(tenant.tunnels() <= 16);
    link.end(now);
    let late = now + Duration::from_secs(3600);
    link.handle_timeout(late);
    while link.poll_event().is_some() {}
    drop(link);
    assert_eq!(
        (tenant.tunnels(), tenant.pending_dials(), tenant.agents()),
        (0, 0, 0)
    );
    assert_eq!((tenant.buffered_bytes(), budget.used()), (0, 0));
}

/// A frontend never answers a packet with more than two.
fn frontend(packets: &[Packet]) {
    let mut frontend = GrpcFrontend::default();
    for packet in packets {
        let mut replies = Vec::new();
        let _ = frontend.handle_packet(packet.clone(), &mut replies);
        assert!(replies.len() <= 2);
    }
}

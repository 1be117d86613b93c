//! Several streams of one tenant under random use, against what each socket was sent.
//!
//! Agents share dial numbers and connection ids on purpose: every stream has tunnel 0, whose bytes
//! differ by the number that is dialed. The sockets check every byte, and that an end is called
//! clean only when all had come.

use std::time::Duration;

use knp_proto::{Extensions, LinkConfig, StreamId};
use proptest::prelude::{Just, Strategy, any, prop_assert_eq, prop_oneof, proptest};

use crate::world::{End, World, generous, tenant};

const STREAMS: u32 = 3;
const TUNNELS: u32 = 4;

#[derive(Clone, Debug)]
enum Act {
    Answer { ok: bool },
    Close { end: End, discard: bool },
    Deliver { to: End },
    Dial,
    Finish { end: End },
    Lose,
    Pass { millis: u64 },
    Read { end: End, max: usize },
    Transmit { end: End },
    Write { end: End, len: usize },
}

fn acts() -> impl Strategy<Value = (u32, u32, Act)> {
    let end = || prop_oneof![Just(End::Server), Just(End::Agent)];
    let act = prop_oneof![
        4 => Just(Act::Dial),
        4 => Just(Act::Answer { ok: true }),
        1 => Just(Act::Answer { ok: false }),
        1 => (end(), any::<bool>()).prop_map(|(end, discard)| Act::Close { end, discard }),
        1 => end().prop_map(|end| Act::Finish { end }),
        12 => end().prop_map(|to| Act::Deliver { to }),
        12 => end().prop_map(|end| Act::Transmit { end }),
        12 => (end(), 1usize..100_000).prop_map(|(end, len)| Act::Write { end, len }),
        8 => (end(), 1usize..100_000).prop_map(|(end, max)| Act::Read { end, max }),
        1 => (0u64..4000).prop_map(|millis| Act::Pass { millis }),
    ];
    let rare = prop_oneof![400 => act, 1 => Just(Act::Lose)];
    (0..STREAMS, 0..TUNNELS, rare)
}

fn act(world: &mut World, number: u32, act: Act) {
    match act {
        Act::Answer { ok: true } => world.answer(number, Ok(())),
        Act::Answer { ok: false } => world.answer(number, Err("refused".to_owned())),
        Act::Close { end, discard } => world.close(end, number, discard),
        Act::Deliver { to } => {
            world.deliver(to);
        }
        Act::Dial => {
            if !world.server.sockets.contains_key(&number) {
                world.dial(number);
            }
        }
        Act::Finish { end } => world.finish(end, number),
        Act::Lose => world.lose(),
        Act::Pass { millis } => world.pass(Duration::from_millis(millis)),
        Act::Read { end, max } => {
            world.read(end, number, max);
        }
        Act::Transmit { end } => {
            world.transmit(end);
        }
        Act::Write { end, len } => {
            world.write(end, number, len);
        }
    }
}

fn extensions() -> impl Strategy<Value = Extensions> {
    (any::<bool>(), any::<bool>()).prop_map(|(window, fin)| Extensions { window, fin })
}

proptest! {
    #[test]
    fn bytes_arrive_in_order_and_none_remain(
        extensions in extensions(),
        acts in proptest::collection::vec(acts(), 1..500),
    ) {
        let servers = tenant("a", generous(), 1 << 30);
        let config = LinkConfig::default();
        let mut worlds: Vec<World> = (0..STREAMS)
            .map(|stream| World::of(&servers, StreamId(u64::from(stream)), extensions, config))
            .collect();
        for (stream, tunnel, next) in acts {
            let number = stream * TUNNELS + tunnel;
            act(&mut worlds[stream as usize], number, next);
        }
        for world in &mut worlds {
            for end in [End::Server, End::Agent] {
                for number in world.numbers(end) {
                    world.answer(number, Ok(()));
                    world.finish(end, number);
                }
            }
            // What is left to send goes out; then all must be over.
            world.settle();
            for number in world.numbers(End::Server) {
                world.answer(number, Ok(()));
                world.settle();
                world.close(End::Server, number, false);
            }
            world.settle();
            world.pass(config.dial_timeout);
            world.pass(config.linger_timeout);
            world.settle();
            let live = world.agent.sockets.values().filter(|socket| socket.is_live()).count();
            prop_assert_eq!(live, 0);
        }
        for world in &mut worlds {
            world.assert_idle();
        }
    }

    /// A stream's end ends its own tunnels and no others.
    #[test]
    fn streams_end_alone(lost in 0..STREAMS, extended: bool) {
        let servers = tenant("a", generous(), 1 << 30);
        let extensions = if extended { Extensions::ALL } else { Extensions::default() };
        let mut worlds: Vec<World> = (0..STREAMS)
            .map(|stream| {
                let stream = StreamId(u64::from(stream));
                World::of(&servers, stream, extensions, LinkConfig::default())
            })
            .collect();
        for (stream, world) in (0..).zip(&mut worlds) {
            world.answer_dials = true;
            for tunnel in 0..TUNNELS {
                world.dial(stream * TUNNELS + tunnel);
            }
            world.settle();
        }
        prop_assert_eq!(servers.tunnels() as u32, STREAMS * TUNNELS);
        worlds[lost as usize].lose();
        worlds[lost as usize].assert_lost();
        prop_assert_eq!(servers.tunnels() as u32, (STREAMS - 1) * TUNNELS);
        for (stream, world) in (0..).zip(&mut worlds) {
            for tunnel in 0..TUNNELS {
                let wrote = world.write(End::Server, stream * TUNNELS + tunnel, 100);
                prop_assert_eq!(wrote, if stream == lost { 0 } else { 100 });
            }
            world.settle();
        }
    }
}

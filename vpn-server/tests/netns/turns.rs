//! A tunnel that is busy by TCP: two connections in turns while the line loses nothing, one when it
//! loses packets.
//!
//! ```text
//!     echo ◀── octets without end, on several connections ─── a test     a word now and then ──▶ echo
//!                 ╰──────── one of two TCP connections through the line ───────╯
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde_json::json;
use testkit::impair::Impairment;
use testkit::tunnel_world::{LIMIT, Params, Part, World};
use testkit::wait;

use crate::world::{alive, dial, hold, start};

/// Each way: long enough that a lost segment is waited for.
const HALF: Duration = Duration::from_millis(5);

#[test]
fn turns_are_taken_while_nothing_is_lost_and_no_inner_connection_notices() {
    let params = Params {
        transport: "tcp",
        client: json!({ "path": { "turn": "1s" } }),
        ..Params::default()
    };
    let (world, _echo) = start(params);
    world.link(0).set_both(Impairment::long(HALF, 0.0));
    let held = hold(&world, 0);
    let load = Load::start(&world);
    wait::until("turns", LIMIT, || of(&world, TURNS) >= 3.0).unwrap();
    assert_eq!(of(&world, WITHHELD), 0.0);
    alive(&held);

    world.link(0).set_both(Impairment::long(HALF, 0.02));
    wait::until("turns to be withheld", LIMIT, || {
        of(&world, WITHHELD) == 1.0
    })
    .unwrap();
    wait::until("the second connection to be closed", LIMIT, || {
        world.metric(Part::Client(0), CLOSED, &[("reason", "lossy")]) == Some(1.0)
    })
    .unwrap();
    let taken = of(&world, TURNS);
    held.wait_exchanges(50, LIMIT).unwrap();
    assert_eq!(of(&world, TURNS), taken);
    load.end();
}

/// Octets that go to the pod and back on some connections until it ends.
struct Load {
    over: Arc<AtomicBool>,
    streams: Vec<JoinHandle<()>>,
}

impl Load {
    fn start(world: &World) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let streams = (0..STREAMS).map(|_| {
            let (over, mut stream) = (Arc::clone(&over), dial(world, 0));
            thread::spawn(move || {
                let piece: Vec<u8> = (0..PIECE).map(|number| number as u8).collect();
                while !over.load(Ordering::Relaxed) {
                    assert!(stream.exchange(&piece).unwrap() == piece, "other octets");
                }
            })
        });
        let streams = streams.collect();
        Self { over, streams }
    }

    /// Expects that every connection lived through it.
    fn end(self) {
        self.over.store(true, Ordering::Relaxed);
        for stream in self.streams {
            stream.join().unwrap();
        }
    }
}

fn of(world: &World, metric: &str) -> f64 {
    world.metric(Part::Client(0), metric, &[]).unwrap()
}

const TURNS: &str = "rhizome_tunnel_turns_total";
const WITHHELD: &str = "rhizome_tunnel_peer_turns_withheld";
const CLOSED: &str = "rhizome_tunnel_links_closed_total";

/// Connections that are never idle, and octets that go there and back at a time.
const STREAMS: usize = 4;
const PIECE: u32 = 32_768;

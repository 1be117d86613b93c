//! What a server's log says of its clients' health.

use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, Subscriber, span};
use tunnel_proto::echo::{self, ProbeInfo};
use tunnel_proto::path::Mode;

use super::SERVER;
use super::simulation::{Simulation, ms};

/// The messages of what is logged at INFO and above.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    /// Returns what was logged since the last call about a peer.
    fn take(&self) -> Vec<String> {
        let lines = std::mem::take(&mut *self.0.lock().unwrap());
        let of_peer = lines.into_iter().filter(|line| line.starts_with("peer "));
        of_peer.collect()
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::INFO
    }

    fn event(&self, event: &Event<'_>) {
        struct Message(String);
        impl Visit for Message {
            fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
                if field.name() == "message" {
                    self.0 = format!("{value:?}");
                }
            }
        }
        let mut message = Message(String::new());
        event.record(&mut message);
        self.0.lock().unwrap().push(message.0);
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

fn probe(ended: bool) -> Vec<u8> {
    let info = ProbeInfo {
        ended,
        ..ProbeInfo::default()
    };
    let addresses = ("192.168.123.64".parse().unwrap(), SERVER.parse().unwrap());
    let mut probe = vec![0; 100];
    let len = echo::request(addresses, 1, info, 0, &mut probe).unwrap();
    probe.truncate(len);
    probe
}

#[test]
fn lines_about_client_are_few_whatever_it_says() {
    let log = Log::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    let mut sim = Simulation::after(Mode::Auto, ms(2000));
    assert_eq!(log.take(), ["peer is healthy"]);
    for number in 0..1000 {
        sim.client_sends(0, probe(number % 2 == 0));
        sim.run_for(ms(130));
    }
    // Two in 10 s, for 130 s.
    let lines = log.take();
    assert!((2..=28).contains(&lines.len()), "{lines:?}");
}

#[test]
fn health_is_told_once_for_each_change() {
    const SILENT: &str = "peer is unhealthy: probes are not answered";
    const CLOSED: &str = "peer is unhealthy: its link is closed";
    let log = Log::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    for (mode, killed) in [
        (Mode::Udp, false),
        (Mode::Udp, true),
        (Mode::Tcp, false),
        (Mode::Tcp, true),
    ] {
        let mut sim = Simulation::after(mode, ms(2000));
        assert_eq!(log.take(), ["peer is healthy"], "{mode:?}");
        sim.clients[0].dead = true;
        if killed {
            sim.kill_client(0);
        }
        sim.run_for(ms(20_000));
        let closed = killed && mode == Mode::Tcp;
        assert_eq!(
            log.take(),
            [if closed { CLOSED } else { SILENT }],
            "{mode:?}"
        );
        // By a new link, which nothing is known of.
        sim.restart_client(0);
        sim.run_for(ms(5000));
        assert_eq!(log.take(), ["peer is healthy"], "{mode:?} {killed}");
        sim.close_client(0);
        sim.clients[0].dead = true;
        sim.run_for(ms(20_000));
        assert_eq!(log.take(), ["peer has ended"], "{mode:?}");
    }
}

//! The scenarios through the smallest proxy there can be, which runs in this very process.

use std::path::PathBuf;
use std::time::Duration;

use testkit::background::Background;
use testkit::tempdir::TempDir;

use super::harm::{self, Stalled};
use super::{Lab, Side, Target, figure as of, memory, speed};
use crate::konnectivity::frontend::{Frontend, Transport};
use crate::konnectivity::load::Load;
use crate::konnectivity::tests::serve_uds;
use crate::report::Figure;

#[test]
fn soak_leaves_nothing() {
    let mut bench = Bench::new();
    harm::soak(&mut bench.lab, &bench.target, 40).unwrap();
    assert_eq!(bench.value("soak, 40 dials", of::LEAKED), Some(0.0));
    assert_eq!(bench.value("soak, 40 dials", of::PENDING), None);
}

#[test]
fn stalled_tunnels_are_released() {
    let mut bench = Bench::new();
    let length = Duration::from_millis(300);
    for (who, case) in [
        (Stalled::Reader, "stall: reader ×3"),
        (Stalled::Destination, "stall: destination ×3"),
    ] {
        harm::stall(&mut bench.lab, &bench.target, who, 3, length).unwrap();
        assert_eq!(bench.value(case, of::LEAKED), Some(0.0), "{case}");
        assert_eq!(bench.value(case, of::UNANSWERED), Some(0.0), "{case}");
        assert!(bench.value(case, of::OTHERS_P99).unwrap() > 0.0, "{case}");
        assert!(bench.value(case, of::DIALS_P99).unwrap() > 0.0, "{case}");
    }
}

#[test]
fn idle_tunnels_and_round_trips_have_figures() {
    let mut bench = Bench::new();
    memory::idle(&mut bench.lab, &bench.target, 10).unwrap();
    assert!(bench.value("idle ×10", of::SERVER_EMPTY).unwrap() > 0.0);
    assert!(bench.value("idle ×10", of::SERVER_TUNNEL).is_some());
    assert_eq!(bench.value("idle ×10", of::AGENT_TUNNEL), None);
    let load = Load {
        connections: 2,
        warm_up: Duration::ZERO,
        length: Duration::from_millis(200),
        interval: Some(Duration::from_millis(20)),
    };
    speed::rtt(&mut bench.lab, &bench.target, load).unwrap();
    assert!(bench.value("rtt c=2 at 100/s", of::P50).unwrap() > 0.0);
}

#[test]
fn abandon_refuses_a_pair_of_others() {
    let mut bench = Bench::new();
    assert!(harm::abandon(&mut bench.lab, &mut bench.target, 1).is_err());
}

/// A lab, and a proxy on a thread of its own.
struct Bench {
    lab: Lab,
    target: Target,
    _proxy: Background,
}

impl Bench {
    fn new() -> Self {
        let (tell, told) = std::sync::mpsc::channel::<PathBuf>();
        let proxy = Background::spawn("proxy", move || async move {
            let dir = TempDir::new("bench-scenario").unwrap();
            tell.send(serve_uds(&dir)).unwrap();
            std::future::pending().await
        });
        let path = told.recv_timeout(Duration::from_secs(20)).unwrap();
        let lab = Lab::new().unwrap();
        let target = Target {
            transport: Transport::HttpUds,
            frontend: Frontend::Uds { grpc: false, path },
            // The proxy is no process of its own: whatever we use, it uses.
            server: Side {
                pid: Some(std::process::id()),
                health: None,
            },
            agent: Side::default(),
            pair: None,
        };
        Self {
            lab,
            target,
            _proxy: proxy.unwrap(),
        }
    }

    fn value(&self, case: &str, figure: Figure) -> Option<f64> {
        self.lab.run.median("http-uds", case, figure)
    }
}

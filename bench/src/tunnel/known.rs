//! What our tunnel must hold, and by which peer it is judged.
//!
//! ```text
//!   figure of ours ──▶ the peer's in this run, else as recorded ──▶ bound, ratio
//! ```
//!
//! What was recorded comes from a quiet machine of two processors (Intel Xeon, Linux 6.18) and stands
//! in when the peer was not measured in the run.

use super::figure as of;
use super::setup::Setup;
use crate::report::{Bound, Figure, Known, Run};

pub(crate) fn known(run: &Run, setup: &str, case: &str, figure: Figure) -> Known {
    let Some(ours) = OURS.iter().find(|ours| ours.name() == setup) else {
        return Known::default();
    };
    let peer = peer(*ours, case);
    let here = run.median(peer.name(), case, figure);
    let reached = here.or_else(|| recorded(peer, case, figure));
    Known {
        must: must(*ours, case, figure, reached),
        peer: here,
    }
}

fn peer(ours: Setup, case: &str) -> Setup {
    if ours != Setup::RhizomeTcp {
        return Setup::WireguardGo2023;
    }
    if case.starts_with(LOSS) || case.contains(RATE) {
        Setup::OpenvpnTcpBbr
    } else {
        Setup::OpenvpnTcp
    }
}

fn must(ours: Setup, case: &str, figure: Figure, peer: Option<f64>) -> Option<Bound> {
    let tcp = ours == Setup::RhizomeTcp;
    let long = case.starts_with(LONG) || case.starts_with(LOSS);
    let rate = case.split_once(RATE).map(|(rate, _)| rate.parse::<f64>());
    if let Some(Ok(rate)) = rate {
        return Some(match figure {
            of::THROUGHPUT if case.ends_with("alone") => Bound::AtLeast(0.8 * rate),
            // Eight round trips.
            of::LOADED_P99 if case.ends_with("alone") => Bound::AtMost(400.0),
            of::SHARE if case.ends_with("bbr") => Bound::AtLeast(40.0),
            _ => return None,
        });
    }
    Some(match figure {
        of::CONNECT => Bound::AtMost(1000.0),
        of::SERVER_IDLE => Bound::AtMost(10.0),
        of::CLIENT_IDLE => Bound::AtMost(15.0),
        of::TURN_P50 => Bound::AtMost(if tcp { 150.0 } else { 80.0 }),
        of::THROUGHPUT => Bound::AtLeast(throughput(ours, case, peer)?),
        of::CPU_ENDS if case == BULK_1 && !tcp => Bound::AtMost(4.0),
        of::CPU_ALL if case == BULK_1 && tcp => Bound::AtMost(peer? / 3.0),
        // Four round trips, and no stall.
        of::LOADED_P99 if long => Bound::AtMost(200.0),
        of::LOADED_MAX => Bound::AtMost(2000.0),
        _ => return None,
    })
}

fn throughput(ours: Setup, case: &str, peer: Option<f64>) -> Option<f64> {
    Some(match (ours, case) {
        (Setup::RhizomeUdp, BULK_1) => 1.1 * peer?,
        (Setup::RhizomeTcp, BULK_1) => 3.0 * peer?,
        (Setup::RhizomeTcp, LOSS_1) => 42.0_f64.max(peer?),
        (Setup::RhizomeTcp, LOSS_8) => 116.0_f64.max(peer?),
        (Setup::RhizomeTcp, LONG_1 | LONG_8) => 300.0,
        (Setup::RhizomeUdp | Setup::RhizomeUdpGateway, LONG_1) => 450.0,
        (Setup::RhizomeUdp | Setup::RhizomeUdpGateway, LONG_8) => 600.0,
        _ => return None,
    })
}

fn recorded(peer: Setup, case: &str, figure: Figure) -> Option<f64> {
    let same =
        |row: &&(Setup, &str, Figure, f64)| row.0 == peer && row.1 == case && row.2 == figure;
    RECORDED.iter().find(same).map(|row| row.3)
}

pub(super) const IDLE: &str = "idle";
pub(super) const BLOCKED: &str = "UDP blocked";
pub(super) const BULK_1: &str = "bulk ×1";
pub(super) const BULK_8: &str = "bulk ×8";
pub(super) const LONG: &str = "50 ms";
pub(super) const LONG_1: &str = "50 ms ×1";
pub(super) const LONG_8: &str = "50 ms ×8";
pub(super) const LOSS: &str = "50 ms, 1 % lost";
pub(super) const LOSS_1: &str = "50 ms, 1 % lost ×1";
pub(super) const LOSS_8: &str = "50 ms, 1 % lost ×8";

const RATE: &str = " Mb/s";

/// Names the case of a line with a rate.
pub(super) fn rate(rate: u64, buffer: u64, beside: &str) -> String {
    format!("{rate}{RATE}, 50 ms, {buffer} ms buffer ×4, {beside}")
}

const OURS: [Setup; 4] = [
    Setup::RhizomeUdp,
    Setup::RhizomeUdpGateway,
    Setup::RhizomeTcp,
    Setup::RhizomeAuto,
];

const RECORDED: &[(Setup, &str, Figure, f64)] = &[
    (Setup::WireguardGo2023, BULK_1, of::THROUGHPUT, 3090.0),
    (Setup::OpenvpnTcp, BULK_1, of::THROUGHPUT, 840.0),
    (Setup::OpenvpnTcp, BULK_1, of::CPU_ALL, 12.2),
    (Setup::OpenvpnTcpBbr, LOSS_1, of::THROUGHPUT, 42.0),
    (Setup::OpenvpnTcpBbr, LOSS_8, of::THROUGHPUT, 116.0),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_with_rate_sets_targets() {
        let run = Run::default();
        let must = |beside, figure| {
            let case = rate(20, 600, beside);
            known(&run, Setup::RhizomeTcp.name(), &case, figure).must
        };
        assert_eq!(must("alone", of::THROUGHPUT), Some(Bound::AtLeast(16.0)));
        assert_eq!(must("alone", of::LOADED_P99), Some(Bound::AtMost(400.0)));
        assert_eq!(must("bbr", of::SHARE), Some(Bound::AtLeast(40.0)));
        assert_eq!(must("bbr", of::LOADED_P99), None);
        assert_eq!(must("cubic", of::SHARE), None);
    }

    #[test]
    fn peer_of_run_precedes_recorded_figure() {
        use Setup::{OpenvpnTcp, OpenvpnTcpBbr, RhizomeTcp, RhizomeUdp, WireguardGo2023};
        let go = (WireguardGo2023, 1000.0);
        for (setup, case, measured, expected) in [
            (RhizomeUdp, BULK_1, None, Some(1.1 * 3090.0)),
            (RhizomeUdp, BULK_1, Some(go), Some(1.1 * 1000.0)),
            // Over a line that loses, a recorded target is not lowered.
            (RhizomeTcp, LOSS_1, Some((OpenvpnTcpBbr, 30.0)), Some(42.0)),
            // Peers are not judged.
            (WireguardGo2023, BULK_1, None, None),
            (OpenvpnTcp, BULK_1, None, None),
            (Setup::Direct, BULK_1, None, None),
        ] {
            let mut run = Run::default();
            if let Some((peer, value)) = measured {
                run.add(peer.name(), case, of::THROUGHPUT, value);
            }
            let found = known(&run, setup.name(), case, of::THROUGHPUT).must;
            assert_eq!(found, expected.map(Bound::AtLeast), "{setup:?}, {case}");
        }
    }
}

//! The renewal of sessions at its own time, 120 s after they began (WireGuard paper §6.1).

use std::time::Duration;

use testkit::wait;

use crate::everyone::with_everyone;
use crate::field::{By, Field, alive};
use crate::nat::{Kind, Nat, Way};
use crate::programs::{Ours, Theirs};

/// By when a session is renewed: 120 s, and some attempts 5 s apart.
const RENEWAL: Duration = Duration::from_secs(170);

/// Well above what a machine takes that is busy, well below what a lost session would.
const GAP: Duration = Duration::from_secs(10);

#[test]
fn sessions_are_renewed_under_traffic() {
    with_everyone(|case| {
        let (inward, outward) = (Field::lay(case), Field::lay(case));
        let nats = [inward.nat(), outward.nat()];
        let server = Ours::server(&inward);
        let _their_client = Theirs::client(&inward, &nats[0]);
        let _their_server = Theirs::server(&outward);
        let client = Ours::client(&outward, &nats[1]);
        let held = [inward.hold(By::Proxy), outward.hold(By::Route)];
        let begun = nats.each_ref().map(answers);
        wait::until("both sessions to be renewed", RENEWAL, || {
            nats.iter()
                .zip(begun)
                .all(|(nat, begun)| answers(nat) > begun)
        })
        .unwrap();
        for held in &held {
            alive(held);
            let gap = held.report().longest_gap;
            println!("{}: the longest silence was {gap:?}", case.name());
            assert!(gap < GAP, "silent for {gap:?}");
        }
        assert!(server.is_ready() && client.is_ready());
    });
}

fn answers(nat: &Nat<'_>) -> u64 {
    nat.count(Way::ToClient, Kind::Response)
}

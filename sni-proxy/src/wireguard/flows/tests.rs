//! The table of flows, by example and against a plain list.

use proptest::prelude::*;

use super::*;

fn client(port: u16) -> SocketAddr {
    ([192, 0, 2, 1], port).into()
}

fn second(n: u64) -> Duration {
    Duration::from_secs(n)
}

#[expect(clippy::disallowed_methods, reason = "an origin that tests count from")]
fn origin() -> Instant {
    Instant::now()
}

fn count<T>(table: &FlowTable<T>, standing: Standing) -> usize {
    let same = |id: &FlowId| table.standing(*id) == Some(standing);
    table.ids().iter().copied().filter(same).count()
}

#[test]
fn flow_age_is_kept_when_the_clock_steps_back() {
    let (start, mut table) = (origin(), FlowTable::new());
    let id = table.insert(start + second(5), client(1), ());
    table.touch(start, id);
    assert_eq!(table.heard(id), Some(start + second(5)));
    assert_eq!(table.expired(start, second(1)), None);
}

#[derive(Clone, Debug)]
enum Step {
    Insert(u16),
    Touch(usize),
    Prove(usize),
    Remove(usize),
    Expire,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0_u16..6).prop_map(Step::Insert),
        3 => (0_usize..40).prop_map(Step::Touch),
        2 => (0_usize..40).prop_map(Step::Prove),
        1 => (0_usize..40).prop_map(Step::Remove),
        2 => Just(Step::Expire),
    ]
}

/// What a flow is in the plain list.
#[derive(Clone, Debug)]
struct Plain {
    id: FlowId,
    client: SocketAddr,
    heard: Instant,
    standing: Standing,
    value: u64,
}

proptest! {
    #[test]
    fn flow_table_matches_plain_list(steps in proptest::collection::vec(step(), 1..200)) {
        let (start, idle) = (origin(), second(20));
        let mut table = FlowTable::new();
        let mut plain: Vec<Plain> = Vec::new();
        for (at, step) in steps.into_iter().enumerate() {
            let now = start + second(at as u64);
            let one = |at: usize, plain: &[Plain]| (!plain.is_empty()).then(|| at % plain.len());
            match step {
                Step::Insert(port) => {
                    let value = at as u64;
                    let id = table.insert(now, client(port), value);
                    let standing = Standing::Fresh;
                    plain.push(Plain { id, client: client(port), heard: now, standing, value });
                }
                Step::Touch(which) => if let Some(which) = one(which, &plain) {
                    table.touch(now, plain[which].id);
                    plain[which].heard = now;
                },
                Step::Prove(which) => if let Some(which) = one(which, &plain) {
                    table.prove(plain[which].id);
                    plain[which].standing = Standing::Proven;
                },
                Step::Remove(which) => if let Some(which) = one(which, &plain) {
                    let gone = plain.remove(which);
                    prop_assert_eq!(table.remove(gone.id), Some(gone.value));
                },
                Step::Expire => {
                    while let Some(id) = table.expired(now, idle) {
                        let which = plain.iter().position(|flow| flow.id == id).unwrap();
                        let gone = plain.remove(which);
                        prop_assert!(now - gone.heard >= idle);
                        table.remove(id);
                    }
                    prop_assert!(plain.iter().all(|flow| now - flow.heard < idle));
                }
            }
            prop_assert_eq!(table.ids().len(), plain.len());
            for standing in [Standing::Fresh, Standing::Proven] {
                let same = plain.iter().filter(|flow| flow.standing == standing);
                prop_assert_eq!(count(&table, standing), same.clone().count());
                let oldest = table.oldest(standing).and_then(|id| table.heard(id));
                prop_assert_eq!(oldest, same.map(|flow| flow.heard).min());
            }
            for port in 0..6 {
                let expected = plain.iter().rev().filter(|flow| flow.client == client(port));
                let expected: Vec<_> = expected.map(|flow| (flow.id, flow.value)).collect();
                let found: Vec<_> = table.of(client(port)).map(|(id, v)| (id, *v)).collect();
                prop_assert_eq!(found, expected);
            }
        }
    }
}

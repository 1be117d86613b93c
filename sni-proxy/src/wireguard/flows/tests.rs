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
fn the_silent_one_goes_first_and_proof_is_no_word_of_the_client() {
    let (start, mut table) = (origin(), FlowTable::new());
    let first = table.insert(start, client(1), 'a');
    let later = table.insert(start + second(1), client(2), 'b');
    assert_eq!(table.oldest(Standing::Fresh), Some(first));
    table.touch(start + second(2), first);
    assert_eq!(table.oldest(Standing::Fresh), Some(later));
    table.prove(later);
    assert_eq!(count(&table, Standing::Proven), 1);
    assert_eq!(table.heard(later), Some(start + second(1)));
    assert_eq!(table.expired(start + second(10), second(9)), Some(later));
    assert_eq!(table.remove(later), Some('b'));
    assert_eq!(table.expired(start + second(10), second(9)), None);
    assert_eq!(table.expired(start + second(11), second(9)), Some(first));
}

#[test]
fn a_client_may_have_several_flows() {
    let (start, mut table) = (origin(), FlowTable::new());
    let ids = [1, 2, 3].map(|value| table.insert(start, client(7), value));
    table.insert(start, client(8), 4);
    let of = |table: &FlowTable<i32>| -> Vec<i32> {
        table.of(client(7)).map(|(_, value)| *value).collect()
    };
    assert_eq!(of(&table), [3, 2, 1]);
    table.remove(ids[1]);
    assert_eq!(of(&table), [3, 1]);
    table.remove(ids[2]);
    assert_eq!(of(&table), [1]);
    table.remove(ids[0]);
    assert_eq!(of(&table), [0; 0]);
    assert_eq!(table.ids().len(), 1);
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
                Step::Expire => while let Some(id) = table.expired(now, idle) {
                    let which = plain.iter().position(|flow| flow.id == id).unwrap();
                    let gone = plain.remove(which);
                    prop_assert!(now - gone.heard >= idle);
                    table.remove(id);
                },
            }
            for standing in [Standing::Fresh, Standing::Proven] {
                let same = plain.iter().filter(|flow| flow.standing == standing);
                prop_assert_eq!(count(&table, standing), same.clone().count());
                let oldest = table.oldest(standing).and_then(|id| table.heard(id));
                prop_assert_eq!(oldest, same.map(|flow| flow.heard).min());
            }
            for port in 0..6 {
                let expected = plain.iter().rev().filter(|flow| flow.client == client(port));
                let mut expected: Vec<u64> = expected.map(|flow| flow.value).collect();
                expected.sort_unstable();
                let mut found: Vec<u64> = table.of(client(port)).map(|(_, v)| *v).collect();
                found.sort_unstable();
                prop_assert_eq!(found, expected);
            }
        }
    }
}

//! Any sequence of changes: the table is what a plain list is.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Insert(u16),
    Touch(usize),
    Prove(usize),
    Remove(usize),
    Evict(Standing),
    Expire,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0_u16..6).prop_map(Step::Insert),
        3 => (0_usize..40).prop_map(Step::Touch),
        2 => (0_usize..40).prop_map(Step::Prove),
        1 => (0_usize..40).prop_map(Step::Remove),
        1 => any::<bool>().prop_map(|proven| Step::Evict(standing(proven))),
        2 => Just(Step::Expire),
    ]
}

fn standing(proven: bool) -> Standing {
    if proven {
        Standing::Proven
    } else {
        Standing::Fresh
    }
}

/// What a flow is in the plain list.
#[derive(Clone, Debug)]
struct Plain {
    id: FlowId,
    client: SocketAddr,
    heard: Instant,
    standing: Standing,
    holder: Holder,
    value: u64,
}

/// Flows of the route, and of the network on it, that a flow has with others of its standing.
fn sizes(plain: &[Plain], flow: &Plain) -> [usize; 2] {
    let peers = plain.iter().filter(|peer| peer.standing == flow.standing);
    let route = peers.filter(|peer| peer.holder.route == flow.holder.route);
    let network = route.clone().filter(|peer| peer.holder == flow.holder);
    [route.count(), network.count()]
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
                    let (value, client) = (at as u64, client(port));
                    let holder = Holder { route: value % 3, network: value % 2 };
                    let id = table.insert(now, client, holder, value);
                    let standing = Standing::Fresh;
                    plain.push(Plain { id, client, heard: now, standing, holder, value });
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
                Step::Evict(standing) => {
                    let victim = table.victim(standing, now, idle);
                    let which = plain.iter().position(|flow| Some(flow.id) == victim);
                    let same = plain.iter().filter(|flow| flow.standing == standing);
                    prop_assert_eq!(which.is_none(), same.clone().count() == 0);
                    let Some(which) = which else { continue };
                    prop_assert_eq!(plain[which].standing, standing);
                    if same.clone().count() <= SAMPLE {
                        let silent = |flow: &Plain| now - flow.heard >= idle;
                        let order = |flow: &Plain| {
                            (silent(flow), sizes(&plain, flow), Reverse(flow.heard))
                        };
                        let first = same.clone().map(order).max();
                        prop_assert_eq!(Some(order(&plain[which])), first);
                    }
                    table.remove(plain.remove(which).id);
                }
                Step::Expire => {
                    for id in table.expired(now, idle) {
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
                prop_assert_eq!(table.len(standing), same.count());
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

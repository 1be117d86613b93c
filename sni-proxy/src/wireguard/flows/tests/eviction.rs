//! Which flow goes, and what the choice costs.

use super::*;

/// The flows of a default table.
const FULL: u32 = 65_536;

fn address(number: u32) -> SocketAddr {
    (std::net::Ipv4Addr::from_bits(number), 1).into()
}

/// Makes proven flows of clients from `first` on, on one route, each of a network of its own.
fn hold(table: &mut FlowTable<u64>, now: Instant, route: u64, first: u32, count: u32) {
    for number in first..first + count {
        let network = u64::from(number);
        let id = table.insert(now, address(number), Holder { route, network }, route);
        table.prove(id);
    }
}

#[test]
fn flow_age_is_kept_when_the_clock_steps_back() {
    let (start, mut table) = (origin(), FlowTable::new());
    let holder = Holder {
        route: 1,
        network: 1,
    };
    let id = table.insert(start + second(5), client(1), holder, ());
    table.touch(start, id);
    assert_eq!(table.heard(id), Some(start + second(5)));
    assert_eq!(table.expired(start, second(1)), []);
}

#[test]
fn largest_route_gives_way_whatever_its_networks() {
    let (now, mut table) = (origin(), FlowTable::new());
    // One key from many networks, among pairs that are heard from less.
    hold(&mut table, now + second(9), 1, 0, 500);
    for route in 2..252 {
        hold(&mut table, now, route, 1000 * route as u32, 2);
    }
    let mut lost = 0;
    for _ in 0..400 {
        let victim = table.victim(Standing::Proven, now, second(180)).unwrap();
        lost += u32::from(table.remove(victim) != Some(1));
    }
    // The last comparisons may miss the route: it has a sixth of the table then.
    assert!(lost <= 20, "{lost} of others");
}

#[test]
fn holder_outweighs_only_smaller_ones() {
    let (now, mut table) = (origin(), FlowTable::new());
    hold(&mut table, now, 1, 0, 3);
    hold(&mut table, now, 2, 10, 1);
    let fresh = |table: &mut FlowTable<u64>, route, network| {
        table.insert(now, client(1), Holder { route, network }, route)
    };
    let [other, equal, own, same] = [(2, 99), (3, 99), (1, 99), (1, 0)]
        .map(|(route, network)| fresh(&mut table, route, network));
    let of = |number| table.of(address(number)).next().unwrap().0;
    let (largest, small) = (of(0), of(10));
    assert!(table.outweighs(largest, other) && table.outweighs(largest, equal));
    assert!(!table.outweighs(small, largest) && !table.outweighs(small, equal));
    // On one route, networks are compared.
    assert!(!table.outweighs(largest, own) && !table.outweighs(largest, same));
}

#[test]
fn silent_flow_goes_before_larger_holders() {
    let (start, mut table) = (origin(), FlowTable::new());
    hold(&mut table, start, 1, 0, 1);
    let now = start + second(60);
    hold(&mut table, now, 2, 10, 9);
    let victim = table.victim(Standing::Proven, now, second(60)).unwrap();
    assert_eq!(table.remove(victim), Some(1));
    let victim = table.victim(Standing::Proven, now, second(60)).unwrap();
    assert_eq!(table.remove(victim), Some(2));
}

#[test]
fn search_for_silent_flows_is_cut_in_parts() {
    let (start, mut table) = (origin(), FlowTable::new());
    hold(&mut table, start, 1, 0, FULL);
    let late = start + second(180);
    let parts: Vec<usize> = std::iter::from_fn(|| {
        let part = table.expired(late, second(180));
        for id in &part {
            table.remove(*id);
        }
        (!table.ids().is_empty() || !part.is_empty()).then_some(part.len())
    })
    .collect();
    assert_eq!(parts.iter().sum::<usize>(), FULL as usize);
    assert!(parts.len() <= SWEEPS + 1, "{} parts", parts.len());
    assert!(parts.iter().all(|part| *part <= FULL as usize / SWEEPS));
}

//! What is remembered: unchanged by a second run, and each step of a rotation.

use super::super::fixture::{SETTLE, START, Shoot, changed, changed_in, wanted};
use super::*;

const DAY: u64 = 24 * 60 * 60;

fn again(seconds: u64) -> Option<Duration> {
    Some(Duration::from_secs(seconds))
}

#[test]
fn second_run_changes_nothing_in_any_phase() {
    let mut shoot = Shoot::new(wanted());
    let unchanged = |shoot: &mut Shoot| {
        let before = shoot.state.clone();
        shoot.pass(DAY);
        shoot.ensure();
        assert_eq!(shoot.state, before);
        before.phase
    };
    assert_eq!(unchanged(&mut shoot), Phase::Completed);
    for (rotate, phase) in [
        (Rotate::Start, Phase::Preparing),
        (Rotate::Start, Phase::Prepared),
        (Rotate::Complete, Phase::Completing),
        (Rotate::Complete, Phase::Completed),
    ] {
        shoot.rotate(rotate).unwrap();
        assert_eq!(unchanged(&mut shoot), phase);
    }
}

#[test]
fn rotation_replaces_every_key_in_four_steps() {
    let mut shoot = Shoot::new(wanted());
    let before = shoot.state.clone();
    assert_eq!(shoot.rotate(Rotate::Start).unwrap(), again(120));
    shoot.pass(120);
    assert_eq!(shoot.rotate(Rotate::Start).unwrap(), None);
    shoot.pass(120);
    assert_eq!(shoot.rotate(Rotate::Complete).unwrap(), again(120));
    shoot.pass(120);
    assert_eq!(shoot.rotate(Rotate::Complete).unwrap(), None);
    assert_eq!(shoot.state.phase, Phase::Completed);
    assert_eq!(shoot.state.last_completion, Some(shoot.now));
    for (old, new) in before.servers.iter().zip(&shoot.state.servers) {
        assert_eq!(old.route_id, new.route_id);
        assert!(old.keys.current != new.keys.current && new.keys.next.is_none());
    }
    for (old, new) in before.clients.iter().zip(&shoot.state.clients) {
        assert!(old.current != new.current && new.next.is_none());
    }
    let authority = &shoot.state.authorities.current;
    assert_ne!(before.authorities.current, *authority);
    assert_eq!(shoot.state.server_certificate.issuer, authority.name);
    assert_eq!(shoot.state.client_certificate.issuer, authority.name);
    // Both ends of these would have to change at one moment.
    assert_eq!(before.preshared, shoot.state.preshared);
}

#[test]
fn steps_wait_until_pods_read_previous_one() {
    let mut shoot = Shoot::new(wanted());
    shoot.rotate(Rotate::Start).unwrap();
    shoot.pass(119);
    assert_eq!(shoot.rotate(Rotate::Start).unwrap(), again(1));
    assert_eq!(shoot.state.phase, Phase::Preparing);
    shoot.pass(1);
    shoot.rotate(Rotate::Start).unwrap();
    assert_eq!(shoot.state.phase, Phase::Prepared);
    assert_eq!(shoot.rotate(Rotate::Complete).unwrap(), again(120));
    assert_eq!(shoot.state.phase, Phase::Prepared);
    assert_eq!(SETTLE.as_secs(), 120);
}

#[test]
fn step_waits_no_longer_when_the_clock_went_back() {
    let mut shoot = Shoot::new(wanted());
    shoot.rotate(Rotate::Start).unwrap();
    shoot.now.0 -= 3600;
    assert_eq!(shoot.rotate(Rotate::Start).unwrap(), again(120));
    shoot.pass(119);
    assert_eq!(shoot.rotate(Rotate::Start).unwrap(), again(1));
    shoot.pass(1);
    assert_eq!(shoot.rotate(Rotate::Start).unwrap(), None);
    assert_eq!(shoot.state.phase, Phase::Prepared);
}

#[test]
fn phases_follow_each_other() {
    let mut shoot = Shoot::new(wanted());
    let refused = shoot.rotate(Rotate::Complete);
    assert!(matches!(refused, Err(PlanError::NotStarted)));
    shoot.rotate(Rotate::Start).unwrap();
    let refused = shoot.rotate(Rotate::Complete);
    assert!(matches!(refused, Err(PlanError::NotPrepared)));
    shoot.pass(DAY);
    shoot.rotate(Rotate::Start).unwrap();
    let prepared = shoot.state.clone();
    // Again is once.
    assert_eq!(shoot.rotate(Rotate::Start).unwrap(), None);
    assert_eq!(shoot.state, prepared);
    shoot.pass(DAY);
    shoot.rotate(Rotate::Complete).unwrap();
    let refused = shoot.rotate(Rotate::Start);
    assert!(matches!(refused, Err(PlanError::Completing)));
    shoot.pass(DAY);
    shoot.rotate(Rotate::Complete).unwrap();
    let completed = shoot.state.clone();
    assert_eq!(shoot.rotate(Rotate::Complete).unwrap(), None);
    assert_eq!(shoot.state, completed);
}

#[test]
fn certificates_are_renewed_by_same_authority() {
    let mut shoot = Shoot::new(wanted());
    let before = shoot.state.clone();
    shoot.pass(3650 * DAY / 5 * 4 - DAY);
    shoot.ensure();
    assert_eq!(shoot.state, before);
    assert!(!authority_runs_out(&shoot.state, shoot.now));
    shoot.pass(2 * DAY);
    shoot.ensure();
    assert_ne!(shoot.state.server_certificate, before.server_certificate);
    assert_ne!(shoot.state.client_certificate, before.client_certificate);
    assert_eq!(shoot.state.authorities, before.authorities);
    assert!(authority_runs_out(&shoot.state, shoot.now));
    let authority = shoot.state.authorities.current.until;
    assert_eq!(shoot.state.server_certificate.until, authority);
    let renewed = shoot.state.clone();
    shoot.pass(DAY);
    shoot.ensure();
    assert_eq!(shoot.state, renewed);
}

#[test]
fn adding_ends_keeps_the_others() {
    let mut shoot = Shoot::new(changed("servers: 2\nclients: 2", "servers: 2\nclients: 1"));
    let before = shoot.state.clone();
    shoot.wanted = changed_in(&[("servers: 2", "servers: 3"), ("[17, 18]", "[17, 18, 99]")]);
    shoot.ensure();
    let state = &shoot.state;
    assert_eq!(state.servers[..2], before.servers[..]);
    assert_eq!(state.servers[2].route_id, 99);
    assert_eq!(state.clients[..1], before.clients[..]);
    assert_eq!(state.preshared[0][0], before.preshared[0][0]);
    assert_eq!(state.preshared.len() * state.preshared[2].len(), 6);
    // A certificate for the new server's names as well.
    assert_ne!(state.server_certificate, before.server_certificate);
    assert_eq!(state.client_certificate, before.client_certificate);
}

#[test]
fn end_added_during_rotation_keeps_its_key() {
    let mut shoot = Shoot::new(changed("clients: 2", "clients: 1"));
    shoot.rotate(Rotate::Start).unwrap();
    shoot.wanted = wanted();
    shoot.pass(DAY);
    shoot.rotate(Rotate::Start).unwrap();
    let fresh = shoot.state.clients[1].clone();
    assert_eq!(fresh.next, None);
    for _ in 0..2 {
        shoot.pass(DAY);
        shoot.rotate(Rotate::Complete).unwrap();
    }
    assert_eq!(shoot.state.clients[1], fresh);
}

#[test]
fn route_ids_never_change() {
    let claims = changed("routeIds: [17, 18]", "");
    let mut random = super::super::fixture::counting();
    assert_eq!(without_route_id(None, &claims), [0, 1]);
    let none = ensure(None, &claims, &[], START, &mut random);
    assert!(matches!(none, Err(PlanError::RouteIdMissing { server: 0 })));
    let claimed = [5, 6].map(|id| RouteId::new(id).unwrap());
    let state = ensure(None, &claims, &claimed, START, &mut random).unwrap();
    assert!(without_route_id(Some(&state), &claims).is_empty());
    let other = ensure(Some(state), &wanted(), &[], START, &mut random);
    assert!(matches!(
        other,
        Err(PlanError::RouteId {
            server: 0,
            wanted: 17,
            has: 5
        })
    ));
}

#[test]
fn state_of_other_version_is_refused() {
    let mut shoot = Shoot::new(wanted());
    shoot.state.version = 2;
    let state = shoot.state.clone();
    let ensured = ensure(Some(state), &wanted(), &[], START, &mut shoot.random);
    assert!(matches!(ensured, Err(PlanError::Version { found: 2 })));
}

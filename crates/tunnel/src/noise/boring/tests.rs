//! What only boringtun has: cookies, checks of contents, and its own timers and queue.

use super::super::tests::{Ends, KEEPALIVE, SOURCE, packet, replied, seal, tick};
use super::*;
use crate::keys::generate;
use crate::noise::Identified;

const OTHER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(198, 51, 100, 9));

/// Brings the server's keys under load and returns the cookie that an initiation leads to.
fn cookie(ends: &Ends, initiation: &[u8]) -> Vec<u8> {
    for _ in 0..200 {
        let (keys, mut out) = (&ends.server_keys, [0; OUT_LEN]);
        let found = keys.identify(SOURCE, initiation, &mut out, || false);
        if let Ok(Identified::Cookie { len }) = found {
            return out[..len].to_vec();
        }
    }
    panic!("never under load");
}

#[test]
fn cookie_is_required_under_load_before_dh() {
    let mut ends = Ends::new();
    let initiation = ends.initiation();
    let cookie = cookie(&ends, &initiation);
    assert_eq!(ends.at_client(&cookie).0, Ok(Opened::Cookie));
    ends.now += Duration::from_secs(1);
    // Sooner than without a cookie.
    let (due, with_cookie) = tick(&mut ends.client, ends.now).unwrap();
    assert_eq!(due, Due::Initiation(148));
    let theirs = ends.client_key.public();
    let (keys, mut out) = (&ends.server_keys, [0; OUT_LEN]);
    let found = keys.identify(SOURCE, &with_cookie, &mut out, || true);
    assert_eq!(found, Ok(Identified::Pair { own: 0, theirs }));
    let found = keys.identify(OTHER, &with_cookie, &mut out, || panic!("asked to spend"));
    let another = Ok(Identified::Cookie { len: 64 });
    assert_eq!(found, another, "the cookie is another address's");
    // The pair counts nothing itself.
    let opened = ends.at_server(&with_cookie).0;
    assert_eq!(opened, replied(Reply::Response));
}

#[test]
fn kept_key_keeps_load_and_sessions() {
    let mut ends = Ends::connected();
    let key = generate().unwrap();
    ends.server_keys.replace(std::slice::from_ref(&key));
    ends.exchange();
    let initiation = ends.initiation();
    assert_eq!(ends.identify(&initiation, true), Err(Refused::Mac));
}

#[test]
fn forged_cookie_is_refused() {
    let mut ends = Ends::new();
    let initiation = ends.initiation();
    let mut cookie = cookie(&ends, &initiation);
    cookie[40] ^= 1;
    assert_eq!(ends.at_client(&cookie).0, Err(Refused::Tag));
    cookie[4] ^= 1;
    assert_eq!(ends.at_client(&cookie).0, Err(Refused::Index));
}

#[test]
fn non_ip_content_confirms_session() {
    let mut ends = Ends::new();
    ends.begin();
    for content in [&b"hello"[..], &[0x45; 20], &[0x60; 40]] {
        let datagram = seal(&mut ends.client, content).unwrap();
        assert_eq!(ends.at_server(&datagram).0, Err(Refused::NotIp));
    }
    assert!(ends.server.is_ready(ends.now));
    ends.exchange();
}

#[test]
fn padding_is_taken_off() {
    let mut ends = Ends::connected();
    let mut padded = vec![0; 48];
    (padded[0], padded[3]) = (0x45, 28);
    let datagram = seal(&mut ends.client, &padded).unwrap();
    assert_eq!(ends.at_server(&datagram).0, packet());
}

#[test]
fn counters_beyond_limit_are_refused() {
    let mut ends = Ends::connected();
    for counter in [u64::MAX, u64::MAX - 1024, COUNTER_END] {
        let mut datagram = seal(&mut ends.client, &[]).unwrap();
        datagram[8..16].copy_from_slice(&counter.to_le_bytes());
        assert_eq!(ends.at_server(&datagram).0, Err(Refused::Counter));
    }
    ends.exchange();
}

#[test]
fn packets_may_be_late_by_a_thousand() {
    let mut ends = Ends::connected();
    let datagrams: Vec<_> = (0..1100)
        .map(|_| seal(&mut ends.client, &[]).unwrap())
        .collect();
    for datagram in datagrams.iter().rev().take(1024) {
        assert_eq!(ends.at_server(datagram).0, KEEPALIVE);
    }
    assert_eq!(ends.at_server(&datagrams[0]).0, Err(Refused::Counter));
}

#[test]
fn boringtun_queue_stays_empty() {
    let mut ends = Ends::new();
    for _ in 0..3 {
        seal(&mut ends.client, &[0x45; 60]);
        seal(&mut ends.server, &[0x45; 60]);
    }
    ends.connect();
    for end in [&mut ends.client, &mut ends.server] {
        let mut out = [0; 2048];
        let queued = end.main.decapsulate(None, &[], &mut out);
        assert!(matches!(queued, TunnResult::Done));
    }
}

/// The state that would hold a session knows nothing yet and would take anything; what comes before
/// it does not let a copy through.
#[test]
fn replayed_initiations_do_not_reach_session() {
    let mut ends = Ends::new();
    let old = ends.initiation();
    let _ = ends.at_server(&old);
    ends.connect();
    ends.now += Duration::from_secs(10);
    ends.server.main = ends.server.maker.tunn();
    for _ in 0..50 {
        assert_eq!(ends.at_server(&old).0, Err(Refused::Stamp));
    }
    ends.connect();
}

/// boringtun gives its session up behind the harness's back; the harness notices and begins anew.
#[test]
fn lost_state_is_noticed_and_made_anew() {
    let mut ends = Ends::connected();
    ends.client.main = ends.client.maker.tunn();
    assert_eq!(seal(&mut ends.client, &[0x45; 60]), None);
    assert!(!ends.client.is_ready(ends.now));
    let due = ends.client.tick(ends.now, &mut [0; OUT_LEN]);
    assert_eq!(due, Some(Due::Initiation(148)));
    ends.connect();
    ends.server.main = ends.server.maker.tunn();
    assert_eq!(seal(&mut ends.server, &[0x45; 60]), None);
    assert!(!ends.server.is_ready(ends.now));
    ends.now += Duration::from_secs(5);
    ends.connect();
}

#[test]
fn response_to_previous_initiation_is_accepted() {
    let mut ends = Ends::new();
    let first = ends.initiation();
    let second = ends.initiation();
    for initiation in [first, second] {
        let (_, response) = ends.at_server(&initiation);
        assert_eq!(ends.at_client(&response).0, replied(Reply::Confirmation));
    }
    let datagram = seal(&mut ends.client, &[]).unwrap();
    assert_eq!(ends.at_server(&datagram).0, KEEPALIVE);
    ends.exchange();
}

#[test]
fn keys_are_never_shown() {
    let ends = Ends::new();
    let shown = format!("{:?} {:?}", ends.client, ends.server_keys);
    let public = ends.server_keys.own()[0].to_string();
    assert!(!shown.contains(&public), "{shown}");
    assert!(shown.starts_with("Noise { sessions:"), "{shown}");
}

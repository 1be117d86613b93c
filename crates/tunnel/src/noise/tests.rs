//! What a [`Noise`] does at both ends of a pair of keys.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use super::*;
use crate::engine::tests::support::random_bytes;
use crate::keys::{PresharedKey, PrivateKey, generate};

/// What became of a datagram.
pub(super) type Taken = Result<Opened, Refused>;

pub(super) const KEEPALIVE: Taken = Ok(Opened::Keepalive);
pub(super) const SOURCE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 7));
const PACKET: [u8; 28] = *b"\x45\0\0\x1c\0\0\0\0\x40\x11\0\0\x0a\0\0\x01\x0a\0\0\x02abcdefgh";
/// The index of both ends.
const INDEX: u32 = 0x0001_2340;
/// Larger than any datagram here.
const ROOM: usize = 2048;

/// A client and a server that are connected by the test's hands.
pub(super) struct Ends {
    pub(super) client_key: PrivateKey,
    pub(super) client: Noise,
    pub(super) server_keys: Keys,
    pub(super) server: Noise,
    pub(super) now: Instant,
}

impl Ends {
    pub(super) fn new() -> Self {
        Self::with([None, None])
    }

    /// A client and a server with a session that both use.
    pub(super) fn connected() -> Self {
        let mut ends = Self::new();
        ends.connect();
        ends
    }

    fn with([at_client, at_server]: [Option<PresharedKey>; 2]) -> Self {
        let [client_key, server_key] = [(); 2].map(|()| generate().unwrap());
        let now = tokio::time::Instant::now().into_std();
        let mut server_keys = Keys::new(UNDER_LOAD);
        server_keys.replace(std::slice::from_ref(&server_key));
        let server = server_keys.pair(0, client_key.public(), at_server, INDEX, false, now);
        Self {
            client: client(&client_key, &server_keys, at_client, now),
            client_key,
            server_keys,
            server: server.unwrap(),
            now,
        }
    }

    /// Returns the client of a process that starts now.
    fn new_client(&self) -> Noise {
        client(&self.client_key, &self.server_keys, None, self.now)
    }

    pub(super) fn initiation(&mut self) -> Vec<u8> {
        initiation(&mut self.client, self.now)
    }

    pub(super) fn at_server(&mut self, datagram: &[u8]) -> (Taken, Vec<u8>) {
        open(&mut self.server, self.now, datagram)
    }

    pub(super) fn at_client(&mut self, datagram: &[u8]) -> (Taken, Vec<u8>) {
        open(&mut self.client, self.now, datagram)
    }

    /// A handshake up to the client's confirmation, which is returned.
    pub(super) fn begin(&mut self) -> Vec<u8> {
        let initiation = self.initiation();
        let (opened, response) = self.at_server(&initiation);
        assert_eq!(opened, replied(Reply::Response));
        let (opened, confirmation) = self.at_client(&response);
        assert_eq!(opened, replied(Reply::Confirmation));
        confirmation
    }

    /// The same up to the server's part, which knows then that the client has the session.
    fn confirm(&mut self) -> Vec<u8> {
        let confirmation = self.begin();
        assert_eq!(self.at_server(&confirmation).0, KEEPALIVE);
        confirmation
    }

    pub(super) fn connect(&mut self) {
        self.confirm();
        self.exchange();
    }

    /// Whose an initiation is, as the server finds out.
    pub(super) fn identify(&self, initiation: &[u8], afford: bool) -> Result<Identified, Refused> {
        let mut out = [0; OUT_LEN];
        let keys = &self.server_keys;
        keys.identify(SOURCE, initiation, &mut out, || afford)
    }

    /// A packet each way.
    pub(super) fn exchange(&mut self) {
        let datagram = seal(&mut self.client, &PACKET).unwrap();
        assert_eq!(self.at_server(&datagram), (packet(), PACKET.to_vec()));
        let datagram = seal(&mut self.server, &PACKET).unwrap();
        assert_eq!(self.at_client(&datagram), (packet(), PACKET.to_vec()));
    }
}

fn client(own: &PrivateKey, server: &Keys, preshared: Option<PresharedKey>, now: Instant) -> Noise {
    let mut keys = Keys::new(UNDER_LOAD);
    keys.replace(std::slice::from_ref(own));
    let client = keys.pair(0, server.own()[0], preshared, INDEX, true, now);
    client.unwrap()
}

fn initiation(client: &mut Noise, now: Instant) -> Vec<u8> {
    let mut out = [0; ROOM];
    let len = client.initiate(now, &mut out).unwrap();
    out[..len].to_vec()
}

pub(super) fn tick(noise: &mut Noise, now: Instant) -> Option<(Due, Vec<u8>)> {
    let mut out = [0; ROOM];
    let due = noise.tick(now, &mut out)?;
    let (Due::Initiation(len) | Due::Keepalive(len)) = due;
    Some((due, out[..len].to_vec()))
}

pub(super) fn packet() -> Taken {
    Ok(Opened::Packet { len: PACKET.len() })
}

pub(super) fn replied(reply: Reply) -> Taken {
    let len = if reply == Reply::Response { 92 } else { 32 };
    Ok(Opened::Reply { len, reply })
}

pub(super) fn seal(noise: &mut Noise, packet: &[u8]) -> Option<Vec<u8>> {
    let mut out = vec![0; packet.len() + 32];
    let len = noise.seal(packet, &mut out)?;
    assert_eq!(len, out.len());
    Some(out)
}

/// Seals so many packets.
fn sealed(noise: &mut Noise, packets: usize) -> Vec<Vec<u8>> {
    let datagrams = (0..packets).map(|_| seal(noise, &PACKET).unwrap());
    datagrams.collect()
}

/// Opens a datagram and returns what was written beside.
pub(super) fn open(noise: &mut Noise, now: Instant, datagram: &[u8]) -> (Taken, Vec<u8>) {
    let mut out = vec![0; datagram.len().max(OUT_LEN)];
    let opened = noise.open(now, SOURCE, datagram, &mut out);
    let len = match opened {
        Ok(Opened::Packet { len } | Opened::Reply { len, .. }) => len,
        Ok(Opened::Cookie | Opened::Keepalive) | Err(_) => 0,
    };
    out.truncate(len);
    (opened, out)
}

#[test]
fn session_is_ready_once_it_is_confirmed() {
    let mut ends = Ends::new();
    for _ in 0..10 {
        assert_eq!(seal(&mut ends.client, &PACKET), None);
        assert_eq!(seal(&mut ends.server, &PACKET), None);
    }
    let ready = |ends: &Ends| [&ends.client, &ends.server].map(|end| end.is_ready(ends.now));
    assert_eq!(ready(&ends), [false, false]);
    let due = tick(&mut ends.client, ends.now);
    assert_eq!(due, None, "no handshake was asked for");
    let confirmation = ends.begin();
    assert_eq!(ready(&ends), [true, false]);
    assert_eq!(seal(&mut ends.server, &PACKET), None);
    let _ = ends.at_server(&confirmation);
    assert_eq!(ready(&ends), [true, true]);
    ends.exchange();
    assert_eq!(ends.client.handshake_age(ends.now), Some(Duration::ZERO));
}

#[test]
fn both_preshared_keys_have_to_agree() {
    let key = |byte| Some(PresharedKey::from_bytes([byte; 32]));
    Ends::with([key(1), key(1)]).connect();
    for preshared in [[key(1), key(2)], [None, key(1)], [key(1), None]] {
        let mut ends = Ends::with(preshared);
        let initiation = ends.initiation();
        let (_, response) = ends.at_server(&initiation);
        assert_eq!(ends.at_client(&response).0, Err(Refused::Key));
        assert!(!ends.client.is_ready(ends.now));
    }
}

#[test]
fn data_is_taken_once() {
    let mut ends = Ends::connected();
    let datagrams = sealed(&mut ends.client, 5);
    for at in [2, 0, 4, 1, 3] {
        let opened = [(); 2].map(|()| ends.at_server(&datagrams[at]).0);
        assert_eq!(opened, [packet(), Err(Refused::Counter)]);
    }
}

#[test]
fn initiation_by_two_links_has_one_response() {
    let mut ends = Ends::new();
    let initiation = ends.initiation();
    let (_, first) = ends.at_server(&initiation);
    let (opened, second) = ends.at_server(&initiation);
    assert_eq!(opened, replied(Reply::Response));
    assert_eq!(first, second);
    assert_eq!(ends.at_client(&second).0, replied(Reply::Confirmation));
    assert_eq!(ends.at_client(&first).0, Err(Refused::Unexpected));
    let datagram = seal(&mut ends.client, &PACKET).unwrap();
    assert_eq!(ends.at_server(&datagram).0, packet());
    ends.now += Duration::from_secs(5);
    assert_eq!(ends.at_server(&initiation).0, Err(Refused::Stamp));
    ends.exchange();
}

#[test]
fn handshakes_go_one_way() {
    let mut ends = Ends::new();
    let role = Err(Refused::Role);
    assert_eq!(ends.server.initiate(ends.now, &mut [0; OUT_LEN]), None);
    let initiation = ends.initiation();
    assert_eq!(ends.at_client(&initiation).0, role);
    let (_, response) = ends.at_server(&initiation);
    assert_eq!(ends.at_server(&response).0, role);
    assert_eq!(ends.at_client(&response).0, replied(Reply::Confirmation));
}

#[test]
fn client_retries_session_renewal() {
    let mut ends = Ends::connected();
    seal(&mut ends.client, &[]).unwrap(); // so that no keepalive is owed
    let start = ends.now;
    let mut initiations = Vec::new();
    for quarter in 0..4 * 600 {
        ends.now = start + Duration::from_millis(250) * quarter;
        if let Some((due, datagram)) = tick(&mut ends.client, ends.now) {
            assert_eq!(due, Due::Initiation(148));
            initiations.push((ends.now - start, datagram));
        }
    }
    let times: Vec<_> = initiations.iter().map(|(at, _)| at.as_secs()).collect();
    assert_eq!(times, (120..600).step_by(5).collect::<Vec<_>>());
    assert!(!ends.client.is_ready(ends.now));
    let (_, latest) = initiations.last().unwrap();
    let (_, response) = ends.at_server(latest);
    assert_eq!(ends.at_client(&response).0, replied(Reply::Confirmation));
    assert!(ends.client.is_ready(ends.now), "after ten minutes");
}

#[test]
fn server_never_begins() {
    let mut ends = Ends::connected();
    let start = ends.now;
    for second in 0..400 {
        ends.now = start + Duration::from_secs(second);
        assert_eq!(ends.server.is_ready(ends.now), second < 179);
        let seals = seal(&mut ends.server, &PACKET).is_some();
        assert_eq!(seals, second < 180, "at {second} s, before the tick");
        assert_eq!(tick(&mut ends.server, ends.now), None);
    }
}

#[test]
fn session_ends_after_three_minutes() {
    let mut ends = Ends::connected();
    let late = sealed(&mut ends.client, 2);
    ends.now += Duration::from_secs(178);
    assert_eq!(ends.at_server(&late[0]).0, packet());
    ends.now += Duration::from_secs(2);
    assert!(!ends.client.is_ready(ends.now) && !ends.server.is_ready(ends.now));
    assert_eq!(ends.client.handshake_age(ends.now), None);
    assert_eq!(ends.at_server(&late[1]).0, Err(Refused::Stale));
    tick(&mut ends.server, ends.now);
    assert_eq!(seal(&mut ends.server, &PACKET), None);
    assert_eq!(ends.at_server(&late[1]).0, Err(Refused::Index));
    ends.connect();
}

#[test]
fn rekey_under_traffic_loses_nothing() {
    let mut ends = Ends::connected();
    for _ in 0..20 {
        ends.now += Duration::from_secs(120);
        let to_client = sealed(&mut ends.server, 4);
        let to_server = sealed(&mut ends.client, 4);
        let confirmation = ends.begin();
        // What was sealed before comes after.
        for datagram in to_client {
            assert_eq!(ends.at_client(&datagram).0, packet());
        }
        assert_eq!(ends.at_server(&to_server[0]).0, packet());
        assert_eq!(ends.at_server(&confirmation).0, KEEPALIVE);
        for datagram in &to_server[1..] {
            assert_eq!(ends.at_server(datagram).0, packet());
        }
        // Neither end went back to the old session for it.
        let newest = |datagram: &[u8]| datagram[4..8].to_vec();
        let sealed = seal(&mut ends.client, &PACKET).unwrap();
        assert_eq!(newest(&sealed), newest(&confirmation));
        assert_ne!(newest(&sealed), newest(&to_server[0]));
        let age = ends.server.handshake_age(ends.now);
        assert_eq!(age, Some(Duration::ZERO));
        ends.exchange();
    }
}

#[test]
fn unanswered_handshakes_leave_the_session_alone() {
    let mut ends = Ends::connected();
    for _ in 0..30 {
        ends.now += Duration::from_secs(5);
        let initiation = ends.initiation();
        assert_eq!(ends.at_server(&initiation).0, replied(Reply::Response));
        ends.exchange();
    }
    ends.connect();
}

/// The client would go back to a session that the server has left.
#[test]
fn response_is_refused_after_a_later_one() {
    let mut ends = Ends::new();
    let responses = [(); 2].map(|()| {
        let initiation = ends.initiation();
        ends.at_server(&initiation).1
    });
    let confirmation = ends.at_client(&responses[1]).1;
    assert_eq!(ends.at_server(&confirmation).0, KEEPALIVE);
    assert_eq!(ends.at_client(&responses[0]).0, Err(Refused::Unexpected));
    let sealed = seal(&mut ends.client, &PACKET).unwrap();
    assert_eq!(sealed[4..8], confirmation[4..8], "the later session");
    ends.exchange();
}

#[test]
fn session_order_rises_through_every_restart() {
    let mut ends = Ends::new();
    let old = ends.initiation();
    let mut last = 0;
    for round in 0..60 {
        // A copy that is taken now and then begins the server's indices again.
        if round % 10 == 9 {
            ends.now += Duration::from_secs(186);
            assert_eq!(ends.at_server(&old).0, replied(Reply::Response));
        }
        let confirmation = ends.confirm();
        let local = u32::from_le_bytes(confirmation[4..8].try_into().unwrap());
        let order = ends.server.session_order(local).unwrap();
        assert!(order > last, "round {round}: {order} after {last}");
        assert_eq!(ends.server.session_order(local.wrapping_add(1)), None);
        last = order;
    }
}

#[test]
fn keepalive_is_owed_to_a_peer_that_sends() {
    let mut ends = Ends::connected();
    let datagram = seal(&mut ends.client, &PACKET).unwrap();
    let _ = ends.at_server(&datagram);
    ends.now += Duration::from_secs(9);
    assert_eq!(tick(&mut ends.server, ends.now), None);
    ends.now += Duration::from_secs(1);
    let (due, keepalive) = tick(&mut ends.server, ends.now).unwrap();
    assert_eq!(due, Due::Keepalive(32));
    assert_eq!(ends.at_client(&keepalive).0, KEEPALIVE);
    ends.now += Duration::from_secs(20);
    assert_eq!(tick(&mut ends.server, ends.now), None, "owed once");
    let due = tick(&mut ends.client, ends.now);
    assert_eq!(due, None, "a keepalive owes none");
}

#[test]
fn restart_of_either_end_is_overcome() {
    let mut ends = Ends::connected();
    ends.now += Duration::from_secs(30);
    ends.client = ends.new_client();
    ends.connect();
    ends.now += Duration::from_secs(30);
    let theirs = ends.client_key.public();
    let pair = |keys: &Keys| keys.pair(0, theirs, None, INDEX, false, ends.now);
    ends.server = pair(&ends.server_keys).unwrap();
    assert!(pair(&Keys::new(UNDER_LOAD)).is_none());
    let datagram = seal(&mut ends.client, &PACKET).unwrap();
    assert_eq!(ends.at_server(&datagram).0, Err(Refused::Index));
    ends.connect();
}

/// Its clock went back when its process was started again.
#[test]
fn client_with_older_clock_gets_in_after_silence() {
    let mut ends = Ends::new();
    let silence = Duration::from_secs(181);
    let mut restarted = ends.new_client();
    let older = initiation(&mut restarted, ends.now + silence);
    ends.connect();
    ends.now += silence - Duration::from_secs(1);
    assert_eq!(ends.at_server(&older).0, Err(Refused::Stamp));
    ends.now += Duration::from_secs(1);
    let (opened, response) = ends.at_server(&older);
    assert_eq!(opened, replied(Reply::Response));
    ends.client = restarted;
    let (opened, confirmation) = ends.at_client(&response);
    assert_eq!(opened, replied(Reply::Confirmation));
    assert_eq!(ends.at_server(&confirmation).0, KEEPALIVE);
    ends.exchange();
}

#[test]
fn older_initiation_is_accepted_by_dead_tunnel() {
    let mut ends = Ends::new();
    let stamp = Err(Refused::Stamp);
    let old: Vec<_> = (0..3).map(|_| ends.initiation()).collect();
    ends.connect();
    ends.now += Duration::from_secs(180);
    assert_eq!(ends.at_server(&old[1]).0, stamp);
    ends.now += Duration::from_secs(1);
    assert_eq!(ends.at_server(&old[1]).0, replied(Reply::Response));
    assert!(!ends.server.is_ready(ends.now));
    // One in five seconds, and meanwhile no others replace its session.
    ends.now += Duration::from_secs(4);
    assert_eq!(ends.at_server(&old[0]).0, stamp);
    ends.now += Duration::from_secs(1);
    assert_eq!(ends.at_server(&old[0]).0, replied(Reply::Response));
    // Whose clock is right gets in at any time, and the others stay out then.
    ends.connect();
    ends.now += Duration::from_secs(60);
    assert_eq!(ends.at_server(&old[2]).0, stamp);
    ends.exchange();
}

#[test]
fn forged_data_is_no_failed_handshake() {
    let mut ends = Ends::connected();
    let mut datagram = seal(&mut ends.client, &PACKET).unwrap();
    let last = datagram.len() - 1;
    datagram[last] ^= 1;
    assert_eq!(ends.at_server(&datagram).0, Err(Refused::Tag));
    datagram[last] ^= 1;
    assert_eq!(ends.at_server(&datagram).0, packet());
}

#[test]
fn unknown_indices_and_small_buffers_are_refused() {
    let mut ends = Ends::connected();
    let datagram = seal(&mut ends.client, &PACKET).unwrap();
    for (datagram, room) in [(&datagram[..], OUT_LEN - 1), (&[4; 65_507], 65_506)] {
        let (server, mut out) = (&mut ends.server, vec![0; room]);
        let opened = server.open(ends.now, SOURCE, datagram, &mut out);
        assert_eq!(opened, Err(Refused::Room));
    }
    for other in [0, 1, 8, 0x80] {
        let mut wrong = datagram.clone();
        wrong[4] = wrong[4].wrapping_add(other);
        wrong[7] ^= 1;
        assert_eq!(ends.at_server(&wrong).0, Err(Refused::Index));
    }
    let mut reserved = datagram.clone();
    reserved[3] = 1;
    assert_eq!(ends.at_server(&reserved).0, Err(Refused::Malformed));
    assert_eq!(ends.server.seal(&PACKET, &mut [0; 59]), None);
    assert_eq!(ends.server.tick(ends.now, &mut []), None);
    assert_eq!(ends.client.initiate(ends.now, &mut [0; OUT_LEN - 1]), None);
    assert_eq!(ends.at_server(&datagram).0, packet());
}

#[test]
fn whose_an_initiation_is() {
    let mut ends = Ends::new();
    let initiation = ends.initiation();
    let (own, theirs) = (ends.server_keys.own()[0], ends.client_key.public());
    let found = [true, false].map(|afford| ends.identify(&initiation, afford));
    let pair = Identified::Pair { own: 0, theirs };
    assert_eq!(found, [Ok(pair), Err(Refused::Budget)]);
    assert_eq!(ends.server_keys.own(), [own]);
    for others in [&[][..], &[generate().unwrap(), generate().unwrap()]] {
        ends.server_keys.replace(others);
        assert_eq!(ends.identify(&initiation, true), Err(Refused::Mac));
    }
}

#[test]
fn junk_of_any_size_changes_nothing() {
    let mut ends = Ends::connected();
    let valid = seal(&mut ends.client, &PACKET).unwrap();
    let initiation = ends.initiation();
    let mut random = random_bytes(7);
    for len in 0..2000 {
        for kind in 0..6 {
            let mut junk: Vec<u8> = (0..len).map(|_| random()).collect();
            // Half of it looks as if it were of this session.
            if kind > 0 && len > 4 && random() > 127 {
                let shared = 4..len.min(16);
                junk[shared.clone()].copy_from_slice(&valid[shared]);
                junk[..4].copy_from_slice(&[kind, 0, 0, 0]);
            }
            for opened in [ends.at_server(&junk).0, ends.at_client(&junk).0] {
                assert!(opened.is_err(), "{junk:?} {opened:?}");
            }
            assert!(ends.identify(&junk, true).is_err(), "{junk:?}");
        }
    }
    for at in 0..initiation.len() {
        let mut broken = initiation.clone();
        broken[at] ^= 0x10;
        let (opened, _) = ends.at_server(&broken);
        // mac2 is nothing to anybody without load.
        let is_unchecked = at >= 132 && opened == replied(Reply::Response);
        assert!(opened.is_err() || is_unchecked, "byte {at}");
    }
    assert_eq!(ends.at_server(&valid).0, packet());
    ends.exchange();
}

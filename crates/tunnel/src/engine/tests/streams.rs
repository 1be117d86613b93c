//! TCP streams of strangers, of clients in their handshake, and links that went silent or are no longer
//! wanted.

use tunnel_proto::path::Mode;

use super::super::*;
use super::SERVER;
use super::simulation::{Simulation, ms};
use super::support::{Sink, client_role, key, params, peer};

#[test]
fn streams_of_strangers_are_bounded_and_end() {
    let mut sim = Simulation::after(Mode::Auto, ms(1000));
    for _ in 0..1000 {
        sim.stranger();
    }
    assert_eq!(
        sim.servers[0].engine.status(sim.now).strangers,
        MAX_UNPROVEN
    );
    assert!(sim.carries(0, 1));
    sim.run_for(ms(11_000));
    assert_eq!(sim.servers[0].engine.status(sim.now).strangers, 0);
    assert_eq!(sim.transport(0, 0), Some(Transport::Udp));
}

#[test]
fn stream_in_handshake_outlives_strangers() {
    let mut sim = Simulation::new(1, 1, Mode::Tcp);
    // Its initiation has come, and nothing has shown yet whose it is.
    while sim.servers[0].engine.status(sim.now).strangers == 0 {
        sim.run_for(ms(1));
    }
    sim.run_for(ms(6));
    assert_eq!(sim.servers[0].engine.status(sim.now).strangers, 1);
    let stream = |sim: &Simulation| {
        let links = &sim.clients[0].engine.status(sim.now).peers[0].links;
        links[0].remote.clone()
    };
    let before = stream(&sim);
    for _ in 0..1000 {
        sim.stranger();
    }
    sim.run_for(ms(40));
    assert_eq!(stream(&sim), before);
    assert_eq!(sim.server_transport(0, 0), Some(Transport::Tcp));
}

#[test]
fn hellos_of_one_stream_force_no_handshakes() {
    let mut sim = Simulation::after(Mode::Tcp, ms(1000));
    let handshakes = |sim: &Simulation| sim.servers[0].engine.counts().handshakes;
    let before = handshakes(&sim);
    for instance in 0..100 {
        sim.hello_to_client(0, instance);
        sim.run_for(ms(100));
    }
    assert_eq!(handshakes(&sim), before);
    assert!(sim.carries(0, 1));
}

#[test]
fn silent_stream_is_closed() {
    let mut sim = Simulation::after(Mode::Tcp, ms(1000));
    assert_eq!(
        sim.servers[0].engine.status(sim.now).peers[0].links.len(),
        1
    );
    sim.clients[0].dead = true;
    sim.run_for(ms(61_000));
    assert_eq!(
        sim.servers[0].engine.status(sim.now).peers[0].links.len(),
        0
    );
}

#[test]
fn addresses_that_client_left_are_forgotten() {
    let mut sim = Simulation::after(Mode::Udp, ms(1000));
    for _ in 0..3 {
        sim.restart_client(0);
        sim.run_for(ms(2000));
    }
    let links = |sim: &Simulation| sim.servers[0].engine.status(sim.now).peers.remove(0).links;
    assert_eq!(links(&sim).len(), 4);
    sim.run_for(ms(61_000));
    let [link] = &links(&sim)[..] else {
        panic!("{:?}", links(&sim));
    };
    assert!(link.active);
    // The one in use stays known, however long it is silent: answers still go there.
    sim.clients[0].dead = true;
    sim.run_for(ms(61_000));
    assert_eq!(links(&sim).len(), 1);
}

#[test]
fn dial_of_removed_server_is_no_link_of_next() {
    let now = tokio::time::Instant::now().into_std();
    let params = params(client_role(Mode::Auto), "client", "192.168.123.64");
    let with = |name, number| Identity {
        keys: vec![key(2)],
        peers: vec![peer(name, number, SERVER)],
    };
    let (keys, random) = (Keys::new(u64::MAX), [3; 3]);
    let mut engine = Engine::new(params, with("a", 1), keys, random, now).unwrap();
    let first_dial = |engine: &mut Engine| {
        engine.handle_timeout(now, &mut Sink::default());
        let requests: Vec<_> = std::iter::from_fn(|| engine.poll_request()).collect();
        let Some(Request::Dial { link, .. }) = requests.first() else {
            panic!("{requests:?}");
        };
        *link
    };
    let before = first_dial(&mut engine);
    engine.replace(now, with("b", 3)).unwrap();
    first_dial(&mut engine);
    engine.replace(now, with("a", 4)).unwrap();
    let after = first_dial(&mut engine);
    let mut connected = |link, stream| {
        let remote = Remote::Stream(StreamId(stream));
        engine.handle_connected(now, "a", link, remote, &mut Sink::default())
    };
    assert!(!connected(before, 1));
    assert!(connected(after, 2));
}

//! Namespaces, cables and bridges, as root or inside a user namespace.
#![cfg(feature = "netns-tests")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;

use testkit::command;
use testkit::netns::{Namespace, cable, sweep};
use testkit::upstream::{Behavior, Upstream};

#[test]
fn two_namespaces_talk_over_a_bridge_in_a_third() {
    let switch = Namespace::new("switch").unwrap();
    switch.add_bridge("br0").unwrap();
    let ends = ["left", "right"].map(|label| {
        let end = Namespace::new(label).unwrap();
        let (near, far) = (end.end("eth0"), switch.end(label));
        cable(near, far).unwrap();
        switch.join_bridge("br0", label).unwrap();
        end
    });
    ends[0].add_address("eth0", "192.0.2.1/24").unwrap();
    ends[0].add_address("eth0", "2001:db8::1/64").unwrap();
    ends[1].add_address("eth0", "192.0.2.2/24").unwrap();
    ends[1].add_address("eth0", "2001:db8::2/64").unwrap();

    for addr in ["192.0.2.1:4000", "[2001:db8::1]:4000"] {
        let listener = ends[0].run(|| TcpListener::bind(addr)).unwrap().unwrap();
        let upstream = Upstream::serve(listener, Behavior::Source { bytes: 3 }).unwrap();
        let mut stream = ends[1].run(|| TcpStream::connect(addr)).unwrap().unwrap();
        let mut back = String::new();
        stream.read_to_string(&mut back).unwrap();
        assert_eq!(back, "xxx");
        assert_eq!(upstream.accepted(), 1);
        // The caller itself is in neither.
        assert!(
            TcpStream::connect_timeout(
                &addr.parse().unwrap(),
                std::time::Duration::from_millis(200)
            )
            .is_err()
        );
    }
}

#[test]
fn a_namespace_forwards_between_its_cables() {
    let router = Namespace::new("router").unwrap();
    router.forward_ipv4().unwrap();
    let ends = [("pod", "10.0.1"), ("node", "10.0.2")].map(|(label, net)| {
        let end = Namespace::new(label).unwrap();
        let far = router.end(label);
        cable(end.end("eth0"), far).unwrap();
        end.add_address("eth0", &format!("{net}.2/24")).unwrap();
        router.add_address(label, &format!("{net}.1/24")).unwrap();
        end.add_route("default", &format!("{net}.1")).unwrap();
        end
    });
    let listener = ends[1]
        .run(|| TcpListener::bind("10.0.2.2:4000"))
        .unwrap()
        .unwrap();
    let upstream = Upstream::serve(listener, Behavior::Echo).unwrap();
    let mut stream = ends[0]
        .run(|| TcpStream::connect("10.0.2.2:4000"))
        .unwrap()
        .unwrap();
    stream.write_all(b"hello").unwrap();
    let mut back = [0; 5];
    stream.read_exact(&mut back).unwrap();
    assert_eq!(&back, b"hello");
    assert_eq!(upstream.open(), 1);
}

#[test]
fn namespace_lives_as_long_as_its_value() {
    let namespace = Namespace::new("inside").unwrap();
    let path = namespace.path();
    assert!(path.exists());
    let links = command::run(namespace.command("ip").args(["-o", "link"])).unwrap();
    assert_eq!(links.lines().count(), 1, "{links}");
    drop(namespace);
    assert!(!path.exists());
}

#[test]
fn a_panic_inside_is_passed_on() {
    let namespace = Namespace::new("panic").unwrap();
    let panic = std::panic::catch_unwind(|| namespace.run(|| assert_eq!(1, 2)));
    assert!(panic.is_err());
}

#[test]
fn left_overs_of_dead_processes_are_swept() {
    let mut child = Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    let stale = format!("rhizome-{}-0-stale", child.id());
    command::run(Command::new("ip").args(["netns", "add", &stale])).unwrap();
    let fresh = Namespace::new("fresh").unwrap();
    sweep();
    let names = command::run(Command::new("ip").args(["netns", "list"])).unwrap();
    assert!(
        !names.contains(&stale) && names.contains(fresh.name()),
        "{names}"
    );
}

//! One process after the other on a node, both there for a while: who asks meanwhile notices nothing.
//!
//! ```text
//!     first ══ connections, questions, probes ══▶ second starts ─▶ `started` ─▶ SIGTERM to the first ─▶ …
//! ```

use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, Scope, ScopedJoinHandle};

use serde_json::{Value, json};
use testkit::process::{ChildGuard, Signal};
use testkit::wait;

use crate::dns::{A, By, FakeDns, Says, ask};
use crate::node::{DEVICE, LIMIT, LISTEN, Node, at, config, converse, ping};

/// The name that the proxy's DNS server answers itself, and where.
const NAME: &str = "kubernetes.default.svc.cluster.local";
const DNS: &str = "10.0.0.2:53";

/// The configuration of the process `number` on a node; `more` keys are set.
fn numbered(node: &Node, number: usize, more: Value) -> Value {
    let mut all = config(json!({
        "admin": { "address": format!("unix:{}", node.dir.join(format!("{number}.sock")).display()) },
        "dns": { "address": DNS, "zone": NAME, "answer": ["10.0.0.2"] },
        "noTrack": "on",
        "drain": { "delay": "1s", "timeout": "10s" },
    }));
    let (Value::Object(base), Value::Object(more)) = (&mut all, more) else {
        panic!("two objects")
    };
    base.extend(more);
    all
}

/// Tells whether the process of this configuration serves, by its own word.
fn has_started(node: &Node, config: &Value) -> bool {
    node.run(&["started"], config).status.success()
}

fn wait_started(node: &Node, config: &Value, child: &mut ChildGuard) {
    child
        .wait_ready(LIMIT, || has_started(node, config))
        .unwrap();
}

/// What is done again and again, and what came of it.
#[derive(Debug, Default)]
struct Repeated {
    over: AtomicBool,
    done: AtomicUsize,
    failed: Mutex<Vec<String>>,
}

impl Repeated {
    /// Does something until the end, on a thread of its own.
    fn repeat<'s>(
        &'s self,
        scope: &'s Scope<'s, '_>,
        what: impl Fn() -> Result<(), String> + Send + 's,
    ) -> ScopedJoinHandle<'s, ()> {
        scope.spawn(move || {
            while !self.over.load(Ordering::Relaxed) {
                if let Err(error) = what() {
                    self.failed.lock().unwrap().push(error);
                }
                self.done.fetch_add(1, Ordering::Relaxed);
            }
        })
    }

    /// Waits until it was done some more, from beginning to end.
    fn wait_more(&self) {
        let before = self.done.load(Ordering::Relaxed);
        let more = || self.done.load(Ordering::Relaxed) > before + 20;
        wait::until("more of it", LIMIT, more).unwrap();
    }
}

/// Ends what is repeated when it is dropped: a test that fails must not wait for its threads.
struct UntilDropped<'a>(&'a [Repeated]);

impl Drop for UntilDropped<'_> {
    fn drop(&mut self) {
        for own in self.0 {
            own.over.store(true, Ordering::Relaxed);
        }
    }
}

/// Connects, has a word echoed, and closes.
fn connection(node: &Node) -> Result<(), String> {
    let mut stream = node
        .connect(LISTEN)
        .map_err(|error| format!("connecting: {error}"))?;
    let mut exchange = || {
        stream.write_all(b"hello")?;
        stream.shutdown(Shutdown::Write)?;
        let mut back = Vec::new();
        stream.read_to_end(&mut back).map(|_| back)
    };
    match exchange() {
        Ok(back) if back.ends_with(b"hello") => Ok(()),
        other => Err(format!("exchanging: {other:?}")),
    }
}

fn question(node: &Node, by: By) -> Result<(), String> {
    let answer = ask(&node.ns, at(DNS), by, NAME, A);
    let wanted: IpAddr = at(DNS).ip();
    if answer == (0, vec![wanted]) {
        return Ok(());
    }
    Err(format!("{by:?}: {answer:?}"))
}

/// Asks as a kubelet does, which asks the node's address and sees no difference between two processes.
fn probe(node: &Node) -> Result<(), String> {
    match node.probe("/ready") {
        Some(answer) if answer.status == 200 => Ok(()),
        other => Err(format!("{other:?}")),
    }
}

#[test]
fn successors_refuse_and_reset_nothing() {
    let node = Node::new("handover");
    let _gateway = node.gateway();
    let own = |number| numbered(&node, number, json!({ "workers": 1 + number % 2 }));
    let mut serving = node.start(&own(0));
    // Connections by more than one, so that there are always some that are being made.
    let all: [Repeated; 5] = Default::default();
    let [connections, more_connections, by_udp, by_tcp, probes] = &all;
    thread::scope(|scope| {
        let _end = UntilDropped(&all);
        connections.repeat(scope, || connection(&node));
        more_connections.repeat(scope, || connection(&node));
        by_udp.repeat(scope, || question(&node, By::Udp));
        by_tcp.repeat(scope, || question(&node, By::Tcp));
        probes.repeat(scope, || probe(&node));
        for number in 1..4 {
            let next = own(number);
            assert!(!has_started(&node, &next), "no process has its socket");
            let mut child = node.spawn_as(&[], &next);
            wait_started(&node, &next, &mut child);
            let mut held = node.connect(LISTEN).unwrap();
            ping(&mut held);
            all.iter().for_each(Repeated::wait_more);
            serving.signal(Signal::TERM).unwrap();
            // Held connections live where they began, while the process does.
            ping(&mut held);
            drop(held);
            assert_eq!(serving.wait_exit(LIMIT).unwrap().code(), Some(0));
            all.iter().for_each(Repeated::wait_more);
            serving = child;
        }
    });
    for (what, own) in ["connections", "connections", "by UDP", "by TCP", "probes"]
        .iter()
        .zip(&all)
    {
        let (done, failed) = (own.done.load(Ordering::Relaxed), own.failed.lock().unwrap());
        println!("{what}: {done}");
        assert!(failed.is_empty(), "{what}: {failed:?}");
    }
    assert!(
        node.nft(&["list", "tables"])
            .contains("rhizome-apiserver-proxy")
    );
    assert_eq!(node.addresses_of(DEVICE), ["10.0.0.2/32", "10.1.2.3/32"]);
}

#[test]
fn signaled_process_leaves_new_connections() {
    let node = Node::new("steered");
    let _gateway = node.gateway();
    let own = |number| {
        numbered(
            &node,
            number,
            json!({ "drain": { "delay": "60s", "timeout": "60s" } }),
        )
    };
    let mut first = node.start(&own(0));
    node.converse(LISTEN);
    let mut second = node.spawn_as(&[], &own(1));
    wait_started(&node, &own(1), &mut second);
    first.signal(Signal::TERM).unwrap();
    first.wait_log("draining", LIMIT).unwrap();
    // The workers hear of it at about the same time; what is left is a matter of their turn.
    let name = "rhizome_listener_connections_total";
    let counted = || node.metric(name, &[]).unwrap_or_default();
    let steered = || {
        let before = counted();
        (0..MANY).for_each(|_| drop(node.converse(LISTEN)));
        counted() == before + MANY as f64
    };
    // The port of probes is the second's already, and so are the numbers.
    wait::until("all connections at the second", LIMIT, steered).unwrap();
    assert!(
        first.exit_status().unwrap().is_none(),
        "and the first could have had them"
    );
    // Alone again it has what is left.
    second.kill().unwrap();
    (0..MANY).for_each(|_| drop(node.converse(LISTEN)));
    first.kill().unwrap();
}

#[test]
fn unresolved_gateway_takes_nothing_over() {
    let node = Node::new("nameless");
    let _gateway = node.gateway();
    let loopback: IpAddr = [127, 0, 0, 1].into();
    let names = FakeDns::start(&node.ns, "127.0.0.1:53", Says::Addresses(vec![loopback]));
    let upstream =
        |name: &str| json!({ "address": format!("{name}:8443"), "mode": "proxy-protocol" });
    let own = |number| {
        numbered(
            &node,
            number,
            json!({ "upstream": upstream("gateway.example.") }),
        )
    };
    let wrapper = node.resolving_at("127.0.0.1");
    let wrapper: Vec<&str> = wrapper.iter().map(String::as_str).collect();
    let _first = node.start_as(&wrapper, &own(0));
    names.say(Says::Failure);
    let mut second = node.spawn_as(&wrapper, &own(1));
    second.wait_log("resolving failed", LIMIT).unwrap();
    assert!(!has_started(&node, &own(1)));
    for _ in 0..MANY {
        node.converse(LISTEN);
        probe(&node).unwrap();
        question(&node, By::Udp).unwrap();
    }
    // One that is stopped meanwhile ends without a drain.
    let third = node.spawn_as(&wrapper, &own(2));
    wait::until("the third to wait", LIMIT, || {
        third.log().contains("is followed")
    })
    .unwrap();
    assert_eq!(third.stop(LIMIT).unwrap().code(), Some(0));

    names.say(Says::Addresses(vec![loopback]));
    wait_started(&node, &own(1), &mut second);
}

/// Starts a first process that serves and cleans up at its exit, and a second one that waits for
/// the gateway's name, which no longer resolves.
fn one_and_one_that_waits(node: &Node, names: &FakeDns) -> (ChildGuard, ChildGuard, Value) {
    let own = |number| {
        let keys = json!({
            "upstream": { "address": "gateway.example.:8443", "mode": "proxy-protocol" },
            "interface": { "cleanup": true },
            "drain": { "delay": "0s", "timeout": "1s" },
        });
        numbered(node, number, keys)
    };
    let wrapper = node.resolving_at("127.0.0.1");
    let wrapper: Vec<&str> = wrapper.iter().map(String::as_str).collect();
    let first = node.start_as(&wrapper, &own(0));
    names.say(Says::Failure);
    let mut second = node.spawn_as(&wrapper, &own(1));
    second.wait_log("is followed", LIMIT).unwrap();
    (first, second, own(1))
}

/// Whether the device and all tables of the node are gone.
fn is_bare(node: &Node) -> bool {
    !node.has(DEVICE) && node.nft(&["list", "tables"]).is_empty()
}

#[test]
fn waiting_process_serves_after_predecessor() {
    let node = Node::new("widowed");
    let _gateway = node.gateway();
    let loopback = Says::Addresses(vec![[127, 0, 0, 1].into()]);
    let names = FakeDns::start(&node.ns, "127.0.0.1:53", loopback.clone());
    let (first, mut second, own) = one_and_one_that_waits(&node, &names);
    assert_eq!(first.stop(LIMIT).unwrap().code(), Some(0));
    // Less than it would wait for the name.
    wait_started(&node, &own, &mut second);
    assert_eq!(node.addresses_of(DEVICE), ["10.0.0.2/32", "10.1.2.3/32"]);
    wait::until("rules again", LIMIT, || !is_bare(&node)).unwrap();
    question(&node, By::Udp).unwrap();
    names.say(loopback);
    node.wait_ready(200);
    node.converse(LISTEN);
    assert_eq!(second.stop(LIMIT).unwrap().code(), Some(0));
    assert!(is_bare(&node));
}

#[test]
fn last_process_cleans_up_without_serving() {
    let node = Node::new("unserved");
    let _gateway = node.gateway();
    let loopback = Says::Addresses(vec![[127, 0, 0, 1].into()]);
    let names = FakeDns::start(&node.ns, "127.0.0.1:53", loopback);
    let (mut first, second, _) = one_and_one_that_waits(&node, &names);
    first.kill().unwrap();
    assert!(!is_bare(&node));
    assert_eq!(second.stop(LIMIT).unwrap().code(), Some(0));
    assert!(is_bare(&node));
}

#[test]
fn draining_process_keeps_node_set_up() {
    let node = Node::new("alone");
    let _gateway = node.gateway();
    let keys = json!({ "drain": { "delay": "60s", "timeout": "60s" } });
    let own = |number| numbered(&node, number, keys.clone());
    let mut first = node.start(&own(0));
    first.signal(Signal::TERM).unwrap();
    first.wait_log("draining", LIMIT).unwrap();
    let take_away_and_wait = || {
        let words = ["addr", "del", "10.1.2.3/32", "dev", DEVICE];
        node.ns.ip(&words).unwrap();
        let back = || {
            node.addresses_of(DEVICE)
                .contains(&"10.1.2.3/32".to_owned())
        };
        wait::until("the address again", LIMIT, back).unwrap();
    };
    take_away_and_wait();
    let mut second = node.spawn_as(&[], &own(1));
    wait_started(&node, &own(1), &mut second);
    first.wait_log("left to another process", LIMIT).unwrap();
    second.kill().unwrap();
    take_away_and_wait();
    first.kill().unwrap();
}

#[test]
fn third_process_answers_probes_during_drain() {
    let node = Node::new("third");
    let _gateway = node.gateway();
    let keys = json!({ "drain": { "delay": "60s", "timeout": "60s" } });
    let own = |number| numbered(&node, number, keys.clone());
    let name = "rhizome_listener_connections_total";
    let counted = || node.metric(name, &[]).unwrap_or_default();
    let mut first = node.start(&own(0));
    let mut second = node.spawn_as(&[], &own(1));
    wait_started(&node, &own(1), &mut second);
    first.signal(Signal::TERM).unwrap();
    first.wait_log("left to another process", LIMIT).unwrap();
    (0..MANY).for_each(|_| drop(node.converse(LISTEN)));
    wait::until("connections at the second", LIMIT, || counted() > 0.0).unwrap();
    let mut third = node.spawn_as(&[], &own(2));
    wait_started(&node, &own(2), &mut third);
    // It alone has had none.
    (0..MANY).for_each(|_| assert_eq!(counted(), 0.0));

    // And it has them all once the second drains, though the first is still there.
    second.signal(Signal::TERM).unwrap();
    second.wait_log("draining", LIMIT).unwrap();
    let steered = || {
        let before = counted();
        (0..MANY).for_each(|_| drop(node.converse(LISTEN)));
        counted() == before + MANY as f64
    };
    wait::until("all connections at the third", LIMIT, steered).unwrap();
    for own in [&mut first, &mut second, &mut third] {
        own.kill().unwrap();
    }
}

#[test]
fn cleanup_is_done_by_last_process() {
    let node = Node::new("cleanup-after");
    let _gateway = node.gateway();
    let own = |number| {
        let keys = json!({ "interface": { "cleanup": true }, "drain": { "delay": "0s", "timeout": "1s" } });
        numbered(&node, number, keys)
    };
    let first = node.start(&own(0));
    let mut second = node.spawn_as(&[], &own(1));
    wait_started(&node, &own(1), &mut second);
    let mut held: TcpStream = node.connect(LISTEN).unwrap();
    ping(&mut held);
    drop(held);
    assert_eq!(first.stop(LIMIT).unwrap().code(), Some(0));
    assert!(node.has(DEVICE));
    assert!(
        node.nft(&["list", "tables"])
            .contains("rhizome-apiserver-proxy")
    );
    converse(node.connect(LISTEN).unwrap());
    assert_eq!(second.stop(LIMIT).unwrap().code(), Some(0));
    assert!(!node.has(DEVICE));
    assert_eq!(node.nft(&["list", "tables"]), "");
}

#[test]
fn admin_address_is_not_shared() {
    let node = Node::new("exclusive");
    let _gateway = node.gateway();
    let own = numbered(
        &node,
        0,
        json!({ "admin": { "address": "127.0.0.1:9901" } }),
    );
    let _first = node.start(&own);
    assert!(has_started(&node, &own));
    let refused = node.run(&[], &own);
    crate::node::expect(&refused, Some("serving admin on 127.0.0.1:9901"));
    for _ in 0..MANY {
        probe(&node).unwrap();
        node.converse(LISTEN);
    }
    let none = node.run(&["started"], &config(json!({})));
    crate::node::expect(&none, Some("admin.address is off"));
}

/// So many that no hash of the kernel's leads all of them to one of two.
const MANY: usize = 24;

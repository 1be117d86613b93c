//! Once announced: both directions, their ends, their volume, and what is left afterwards.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::thread;
use std::time::Duration;

use serde_json::json;
use testkit::process::Usage;
use testkit::proxy_header;
use testkit::sockets;
use testkit::upstream::{Behavior, Upstream};
use testkit::wait;

use crate::gateway::{Scripted, consent_and_echo, read_head};
use crate::proxy::{LIMIT, Program, Running, by_connect, by_proxy_header, config, connect, finish};

#[test]
fn the_clients_end_leaves_the_way_back_open() {
    let gateway = Upstream::start(Behavior::AnswersAtEof).unwrap();
    let proxy = Running::start(&config(by_proxy_header(gateway.addr()), json!({})));
    let mut client = proxy.connect();
    let header = proxy_header::v2(client.local_addr().unwrap(), proxy.addr(), &[]);
    client.write_all(&[7; 100_000]).unwrap();
    let count = String::from_utf8(finish(client)).unwrap();
    assert_eq!(count, (100_000 + header.len()).to_string());
    proxy.wait_closed("closed", 1.0);

    let gateway = Scripted::start(|mut stream| {
        read_head(&mut stream);
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        stream.write_all(all.len().to_string().as_bytes()).unwrap();
    });
    let proxy = Running::start(&config(by_connect(gateway.addr), json!({})));
    let mut client = proxy.connect();
    client.write_all(&[7; 100_000]).unwrap();
    assert_eq!(finish(client), b"100000");
    proxy.wait_closed("closed", 1.0);
}

#[test]
fn the_gateways_end_leaves_the_way_there_open() {
    let greeting = b"bye".to_vec();
    let gateway = Upstream::start(Behavior::EndsWriteFirst { greeting }).unwrap();
    let proxy = Running::start(&config(by_proxy_header(gateway.addr()), json!({})));
    let mut client = proxy.connect();
    let mut heard = Vec::new();
    client.read_to_end(&mut heard).unwrap();
    assert_eq!(heard, b"bye");
    let header = proxy_header::v2(client.local_addr().unwrap(), proxy.addr(), &[]);
    client.write_all(&[7; 50_000]).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    gateway.wait_closed(LIMIT).unwrap();
    assert_eq!(gateway.received(), 50_000 + header.len() as u64);
    proxy.wait_closed("closed", 1.0);
}

#[test]
fn resets_are_told_apart_by_side() {
    let gateway = Upstream::start(Behavior::Resets { after: 40 }).unwrap();
    let proxy = Running::start(&config(by_proxy_header(gateway.addr()), json!({})));
    let mut client = proxy.connect();
    client.write_all(&[7; 100]).unwrap();
    let _ = client.read_to_end(&mut Vec::new());
    proxy.wait_closed("upstream_reset", 1.0);

    let gateway = Upstream::start(Behavior::Sink).unwrap();
    let proxy = Running::start(&config(by_proxy_header(gateway.addr()), json!({})));
    let client = proxy.connect();
    gateway.wait_accepted(1, LIMIT).unwrap();
    let client = socket2::Socket::from(client);
    client.set_linger(Some(Duration::ZERO)).unwrap();
    drop(client);
    proxy.wait_closed("downstream_reset", 1.0);
}

#[test]
fn bulk_is_complete_counted_and_spliced() {
    const BYTES: usize = 16 << 20;
    let gateway = Scripted::start(consent_and_echo);
    let proxy = Running::start(&config(by_connect(gateway.addr), json!({})));
    let mut client = proxy.connect();
    let sent: Vec<u8> = (0..BYTES).map(|n| (n % 251) as u8).collect();
    let mut writer = client.try_clone().unwrap();
    let words = sent.clone();
    let writing = thread::spawn(move || {
        writer.write_all(&words).unwrap();
        writer.shutdown(Shutdown::Write).unwrap();
    });
    let mut heard = Vec::new();
    client.read_to_end(&mut heard).unwrap();
    writing.join().unwrap();
    assert!(heard == sent, "{} bytes differ", heard.len());
    proxy.wait_closed("closed", 1.0);

    let metrics = proxy.metrics();
    for direction in ["rx", "tx"] {
        let label = [("direction", direction)];
        let relayed = metrics.value("rhizome_relay_bytes_total", &label);
        assert_eq!(relayed, Some(BYTES as f64), "{direction}");
    }
    let copied = metrics.value("rhizome_relay_copied_bytes_total", &[]);
    let copied = copied.unwrap_or(0.0);
    println!("{copied} of {} bytes were copied", 2 * BYTES);
    assert!(copied < 0.1 * 2.0 * BYTES as f64);
}

#[test]
fn connections_toward_the_gateway_are_kept_alive() {
    for (keepalive, kept) in [("1s", true), ("0s", false)] {
        let gateway = Upstream::start(Behavior::Sink).unwrap();
        let tcp = json!({ "tcp": { "keepalive": keepalive } });
        let proxy = Running::start(&config(by_proxy_header(gateway.addr()), tcp));
        let _client = proxy.connect();
        gateway.wait_accepted(1, LIMIT).unwrap();
        let keeps_alive = || sockets::keeps_alive(gateway.addr()).unwrap();
        if kept {
            wait::until("keepalive", LIMIT, keeps_alive).unwrap();
        } else {
            // It would have been set before it connected.
            assert!(sockets::toward(gateway.addr()).unwrap().contains("skmem"));
            assert!(!keeps_alive());
        }
    }
}

#[test]
fn memory_returns_after_load() {
    let gateway = Upstream::start(Behavior::Echo).unwrap();
    let program = Program::start(&config(by_proxy_header(gateway.addr()), json!({})));
    let usage = || -> Usage { program.child.usage().unwrap() };
    // The first connection and the first scrape may leave something behind for good.
    assert!(!finish(connect(program.addr)).is_empty());
    crate::proxy::metrics(program.probes);
    let active = "rhizome_listener_connections_active";
    let none = || crate::proxy::metrics(program.probes).value(active, &[]) == Some(0.0);
    let settled = || gateway.open() == 0 && none();
    wait::until("the first connection's end", LIMIT, settled).unwrap();
    let before = usage();

    for _ in 0..4 {
        let clients: Vec<_> = (0..100)
            .map(|_| {
                let mut client = connect(program.addr);
                client.write_all(&[7; 40_000]).unwrap();
                client
            })
            .collect();
        let all = || usage().descriptors >= before.descriptors + 190;
        // A few that the first connection or a scrape still held may have gone meanwhile.
        wait::until("both sockets of each connection", LIMIT, all).unwrap();
        assert_eq!(usage().threads, before.threads);
        for client in clients {
            assert!(finish(client).len() > 40_000);
        }
    }

    // Pipes that a burst needed go back within ten seconds or so.
    let limit = Duration::from_secs(25);
    let back = || usage().descriptors <= before.descriptors;
    wait::until("the descriptors to be given back", limit, back).unwrap();
    let after = usage();
    println!("before {before:?}\nafter  {after:?}");
    // The control runtime, one worker, and the thread that writes the log.
    assert_eq!((before.threads, after.threads), (3, 3));
}

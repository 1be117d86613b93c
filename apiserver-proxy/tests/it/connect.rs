//! Mode `http-connect`: the request, and every answer to it.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use serde_json::json;
use testkit::wait::Stopwatch;

use crate::gateway::{Scripted, consent_and_echo, is_silent, read_head};
use crate::proxy::{DESTINATION, Running, by_connect, config, finish, with};

#[test]
fn request_names_destination_and_gateway() {
    let gateway = Scripted::start(consent_and_echo);
    let proxy = Running::start(&config(by_connect(gateway.addr), json!({})));
    let mut client = proxy.connect();
    client.write_all(b"hello").unwrap();
    assert_eq!(finish(client), b"hello");
    let at = gateway.addr;
    assert_eq!(
        gateway.outcome(),
        format!(
            "CONNECT {at} HTTP/1.1\r\nHost: {at}\r\nX-Gardener-Destination: {DESTINATION}\r\n\r\n"
        )
    );
}

#[test]
fn client_bytes_wait_for_200() {
    let gateway = Scripted::start(|mut stream| {
        read_head(&mut stream);
        let silent = is_silent(&mut stream, Duration::from_millis(500));
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        (silent, all)
    });
    let proxy = Running::start(&config(by_connect(gateway.addr), json!({})));
    let mut client = proxy.connect();
    client.write_all(b"impatient").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let (silent, all) = gateway.outcome();
    assert!(silent, "something was sent before the 200");
    assert_eq!(all, b"impatient");
}

#[test]
fn a_consent_may_come_in_pieces_and_carry_fields() {
    for answer in [
        "HTTP/1.1 200 OK\r\n\r\n",
        "HTTP/1.0 200 Connection established\r\nServer: envoy\r\n\r\n",
        // RFC 9110 §9.3.6: a client ignores both fields in a 2xx answer to CONNECT.
        "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
        "HTTP/1.1 204 No Content\r\n\r\n",
    ] {
        let gateway = Scripted::start(move |mut stream| {
            read_head(&mut stream);
            for byte in answer.as_bytes() {
                stream.write_all(&[*byte]).unwrap();
                std::thread::yield_now();
            }
            let mut word = [0; 4];
            stream.read_exact(&mut word).unwrap();
            stream.write_all(&word).unwrap();
        });
        let proxy = Running::start(&config(by_connect(gateway.addr), json!({})));
        let mut client = proxy.connect();
        client.write_all(b"ping").unwrap();
        assert_eq!(finish(client), b"ping", "{answer:?}");
    }
}

#[test]
fn bytes_after_connect_answer_reach_client() {
    let long = "x".repeat(12_000);
    let behind = long.clone();
    let gateway = Scripted::start(move |mut stream| {
        read_head(&mut stream);
        let answer = format!("HTTP/1.1 200 OK\r\n\r\n{behind}");
        stream.write_all(answer.as_bytes()).unwrap();
        stream.write_all(b" and more").unwrap();
    });
    let proxy = Running::start(&config(by_connect(gateway.addr), json!({})));
    let mut client = proxy.connect();
    let mut all = String::new();
    client.read_to_string(&mut all).unwrap();
    assert_eq!(all, format!("{long} and more"));
    drop(client);
    proxy.wait_closed("closed", 1.0);
    let tx = [("direction", "tx")];
    let relayed = proxy.metrics().value("rhizome_relay_bytes_total", &tx);
    assert_eq!(relayed, Some(12_009.0));
}

#[test]
fn interim_answers_are_passed_over() {
    // RFC 9110 §15.2: any number of them may come before the final answer.
    for segments in [
        [
            "HTTP/1.1 100 Continue\r\n\r\n",
            "HTTP/1.1 200 OK\r\n\r\nearly",
        ]
        .as_slice(),
        &["HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n\r\nearly"],
        &[
            "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r",
            "\nHTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 2",
            "00 OK\r\n\r\nearly",
        ],
    ] {
        let gateway = Scripted::start(move |mut stream| {
            read_head(&mut stream);
            for segment in segments {
                stream.write_all(segment.as_bytes()).unwrap();
                std::thread::yield_now();
            }
            let mut word = [0; 4];
            stream.read_exact(&mut word).unwrap();
            stream.write_all(&word).unwrap();
        });
        let proxy = Running::start(&config(by_connect(gateway.addr), json!({})));
        let mut client = proxy.connect();
        client.write_all(b"ping").unwrap();
        assert_eq!(finish(client), b"earlyping", "{segments:?}");
    }
}

/// Has the gateway do `answer` with the request it has read, and expects the client to be closed
/// without a byte, for `reason`: long before the time limit, or at it when that is the reason.
fn refused(answer: impl Fn(&mut TcpStream) + Clone + Send + 'static, reason: &str, limit: &str) {
    let spoke = Arc::new(Barrier::new(2));
    let client_spoke = Arc::clone(&spoke);
    let gateway = Scripted::start(move |mut stream| {
        read_head(&mut stream);
        client_spoke.wait();
        answer(&mut stream);
        // Whatever the client has said must not come now either.
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        rest
    });
    let limits = json!({ "connectTimeout": limit });
    let proxy = Running::start(&config(with(by_connect(gateway.addr), limits), json!({})));
    let watch = Stopwatch::start();
    let mut client = proxy.connect();
    client.write_all(b"secret").unwrap();
    spoke.wait();
    let mut heard = Vec::new();
    let _ = client.read_to_end(&mut heard);
    let took = watch.elapsed();
    assert_eq!(heard, b"", "{reason}");
    let expected = match limit {
        SHORT => Duration::from_millis(650)..Duration::from_secs(5),
        _ => Duration::ZERO..Duration::from_secs(5),
    };
    assert!(expected.contains(&took), "{reason}: {took:?}");
    proxy.wait_closed(reason, 1.0);
    assert_eq!(gateway.outcome(), b"", "{reason}");
}

/// Time limits of connecting: one to be met, and one that is far away.
const SHORT: &str = "700ms";
const LONG: &str = "15s";

#[test]
fn a_refusal_closes_the_client_at_once() {
    for answer in [
        "HTTP/1.1 404 Not Found\r\n\r\n",
        "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 2\r\n\r\nno",
        "HTTP/1.1 308 Permanent Redirect\r\nlocation: https://x/\r\n\r\n",
        "HTTP/1.1 403 Forbidden\r\n\r\n",
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 403 Forbidden\r\n\r\n",
        // RFC 9110 §15.2.2: what follows is another protocol, and none was asked for.
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
    ] {
        let answer = move |stream: &mut TcpStream| stream.write_all(answer.as_bytes()).unwrap();
        refused(answer, "connect_failed", LONG);
    }
}

#[test]
fn malformed_answer_closes_client_at_once() {
    for answer in [
        "SSH-2.0-OpenSSH_9.2\r\n",
        "\x15\x03\x01\0\x02\x02\x28\r\n\r\n",
        "HTTP/1.1 2OO OK\r\n\r\n",
        "HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
    ] {
        let answer = move |stream: &mut TcpStream| stream.write_all(answer.as_bytes()).unwrap();
        refused(answer, "connect_failed", LONG);
    }
    let endless = |stream: &mut TcpStream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n");
        while stream
            .write_all(&[b"X-Fill: ", [b'x'; 1000].as_slice(), b"\r\n"].concat())
            .is_ok()
        {}
    };
    refused(endless, "connect_failed", LONG);
}

#[test]
fn missing_answer_ends_at_timeout() {
    refused(|_| {}, "connect_timeout", SHORT);
    // Half an answer does not buy more time.
    let half = |stream: &mut TcpStream| stream.write_all(b"HTTP/1.1 200 OK\r\nX: ").unwrap();
    refused(half, "connect_timeout", SHORT);
}

#[test]
fn gateway_eof_before_answer_closes_client() {
    let hang_up = |stream: &mut TcpStream| stream.shutdown(Shutdown::Both).unwrap();
    refused(hang_up, "upstream_reset", LONG);
}

#[test]
fn many_wait_for_their_answers_side_by_side() {
    let gateway = Scripted::start(|mut stream| {
        read_head(&mut stream);
        assert!(is_silent(&mut stream, Duration::from_millis(300)));
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
        let mut word = [0; 4];
        stream.read_exact(&mut word).unwrap();
        stream.write_all(&word).unwrap();
    });
    let proxy = Running::start(&config(by_connect(gateway.addr), json!({})));
    let watch = Stopwatch::start();
    let clients: Vec<_> = (0..20_u32)
        .map(|number| {
            let mut client = proxy.connect();
            client.write_all(&number.to_be_bytes()).unwrap();
            (number, client)
        })
        .collect();
    for (number, client) in clients {
        assert_eq!(finish(client), number.to_be_bytes());
    }
    // One after the other they would take 6 s.
    assert!(
        watch.elapsed() < Duration::from_secs(5),
        "{:?}",
        watch.elapsed()
    );
}

//! A reset of one side reaches the other as a reset: in both modes, before and while relaying, in
//! the middle of bulk and of nothing, spliced and copied.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};
use socket2::SockRef;
use testkit::upstream::{Behavior, Upstream};

use crate::gateway::{Scripted, read_head};
use crate::proxy::{LIMIT, Running, by_connect, by_proxy_header, config};

const BULK: usize = 4 << 20;

/// Closes by a reset.
fn reset(stream: TcpStream) {
    let socket = SockRef::from(&stream);
    socket.set_linger(Some(Duration::ZERO)).unwrap();
}

/// Reads to the end, whatever it is.
fn read_out(mut stream: &TcpStream) -> (usize, Result<(), ErrorKind>) {
    let mut all = Vec::new();
    let end = stream.read_to_end(&mut all);
    (all.len(), end.map(drop).map_err(|error| error.kind()))
}

/// Each mode, with each way of moving bulk.
fn proxies(gateway: impl ToString) -> Vec<(String, Running)> {
    let gateway = gateway.to_string();
    let modes: [(&str, Value); 2] = [
        ("proxy-protocol", by_proxy_header(&gateway)),
        ("http-connect", by_connect(&gateway)),
    ];
    let both = modes.into_iter().flat_map(|(mode, upstream)| {
        [true, false].map(|splice| {
            let config = config(upstream.clone(), json!({ "splice": splice }));
            let name = format!("{mode}, splice {splice}");
            (name, Running::start(&config))
        })
    });
    both.collect()
}

/// A gateway that consents if it is asked, and then does what `script` says.
fn gateway<T: Send + 'static>(
    script: impl Fn(TcpStream) -> T + Clone + Send + 'static,
) -> Scripted<T> {
    Scripted::start(move |mut stream| {
        let mut first = [0];
        stream.peek(&mut first).unwrap();
        if first == *b"C" {
            read_head(&mut stream);
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
        } else {
            // A PROXY header of version 2 with two addresses of IPv4.
            stream.read_exact(&mut [0; 28]).unwrap();
        }
        script(stream)
    })
}

#[test]
fn client_reset_reaches_gateway() {
    for bytes in [100, BULK] {
        let gateway = gateway(move |mut stream| {
            let mut all = vec![0; bytes];
            stream.read_exact(&mut all).unwrap();
            stream.write_all(b"!").unwrap();
            read_out(&stream)
        });
        for (name, proxy) in proxies(gateway.addr) {
            let mut client = proxy.connect();
            client.write_all(&vec![7; bytes]).unwrap();
            client.read_exact(&mut [0]).unwrap();
            reset(client);
            let reset = (0, Err(ErrorKind::ConnectionReset));
            assert_eq!(gateway.outcome(), reset, "{name}, {bytes} bytes");
            proxy.wait_closed("downstream_reset", 1.0);
        }
    }
}

#[test]
fn gateway_reset_reaches_client() {
    for bytes in [100, BULK] {
        let gateway = gateway(move |mut stream| {
            stream.read_exact(&mut vec![0; bytes]).unwrap();
            stream.write_all(b"cut").unwrap();
            // It has arrived before the connection ends.
            stream.read_exact(&mut [0]).unwrap();
            reset(stream);
        });
        for (name, proxy) in proxies(gateway.addr) {
            let mut client = proxy.connect();
            client.write_all(&vec![7; bytes]).unwrap();
            client.read_exact(&mut [0; 3]).unwrap();
            client.write_all(&[7]).unwrap();
            let reset = (0, Err(ErrorKind::ConnectionReset));
            assert_eq!(read_out(&client), reset, "{name}, {bytes} bytes");
            proxy.wait_closed("upstream_reset", 1.0);
        }
    }
}

#[test]
fn reset_instead_of_consent_reaches_client() {
    let gateway = Upstream::start(Behavior::Resets { after: 40 }).unwrap();
    let proxy = Running::start(&config(by_connect(gateway.addr()), json!({})));
    let client = proxy.connect();
    let reset = (0, Err(ErrorKind::ConnectionReset));
    assert_eq!(read_out(&client), reset);
    gateway.wait_closed(LIMIT).unwrap();
    proxy.wait_closed("upstream_reset", 1.0);
}

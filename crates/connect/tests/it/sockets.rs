//! Over loopback, as a tunnel server would use it: its own refusals, and a relay to a socket.

use connect::{Params, Refusal};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};

use crate::doubles::{Double, Plan, serve};

const CONNECT: &[u8] = b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n";
const ESTABLISHED: &[u8] = b"HTTP/1.1 200 Connection Established\r\n\r\n";

async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let (client, server) = tokio::join!(TcpStream::connect(addr), listener.accept());
    (client.unwrap(), server.unwrap().0)
}

#[tokio::test]
async fn bytes_pass_both_ways_until_both_ends_close() {
    let upstream = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let dial = Double::new(Plan::Connect(upstream.local_addr().unwrap()));
    let answer = async {
        let (mut stream, _) = upstream.accept().await.unwrap();
        let mut asked = Vec::new();
        stream.read_to_end(&mut asked).await.unwrap();
        stream.write_all(&vec![b'x'; 1 << 20]).await.unwrap();
        asked
    };
    let (mut client, server) = UnixStream::pair().unwrap();
    let ask = async {
        client.write_all(CONNECT).await.unwrap();
        client.write_all(b"early ").await.unwrap();
        let mut head = vec![0; ESTABLISHED.len()];
        client.read_exact(&mut head).await.unwrap();
        assert_eq!(head, ESTABLISHED);
        client.write_all(b"late").await.unwrap();
        client.shutdown().await.unwrap();
        let mut all = Vec::new();
        client.read_to_end(&mut all).await.unwrap();
        all
    };
    let double = &dial;
    let params = Params::default();
    let (outcome, asked, answered) = tokio::join!(serve(server, double, &params), answer, ask);
    assert_eq!(asked, b"early late");
    assert!(answered.len() == 1 << 20 && answered.iter().all(|&byte| byte == b'x'));
    assert_eq!((outcome.received, outcome.sent), (10, 1 << 20));
    assert_eq!(outcome.end, "closed");
}

#[tokio::test]
async fn closed_port_is_answered_with_502() {
    let unused = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = unused.local_addr().unwrap();
    drop(unused);
    let dial = Double::new(Plan::Connect(addr));
    let (mut client, server) = pair().await;
    let ask = async {
        client.write_all(CONNECT).await.unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        drop(client);
        answer
    };
    let double = &dial;
    let params = Params::default();
    let (outcome, answer) = tokio::join!(serve(server, double, &params), ask);
    assert!(
        answer.starts_with("HTTP/1.1 502 Bad Gateway\r\n"),
        "{answer}"
    );
    assert_eq!(outcome.end, "connect_failed");
}

/// Closing at once would reset the connection, since there is something unread, and the reset
/// would overtake the answer.
#[tokio::test]
async fn answer_survives_bytes_client_still_sends() {
    let refusals = [
        Refusal::new(403, "forbidden", "not in the networks"),
        Refusal::new(503, "no_tunnel", "no tunnel is up"),
        Refusal::new(504, "connect_timeout", "no answer in time"),
    ];
    for refusal in refusals {
        let dial = Double::new(Plan::Refuse(refusal.clone()));
        let (mut client, server) = pair().await;
        let ask = async {
            client.write_all(CONNECT).await.unwrap();
            client.write_all(&[b'y'; 100_000]).await.unwrap();
            client.shutdown().await.unwrap();
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.unwrap();
            answer
        };
        let double = &dial;
        let params = Params::default();
        let (outcome, answer) = tokio::join!(serve(server, double, &params), ask);
        assert!(answer.ends_with(&refusal.body), "{answer:?}");
        assert_eq!(outcome.status, Some(refusal.status));
    }
}

//! The time between a CONNECT and its answer.

use std::mem::size_of_val;

use connect::{End, Params};
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::Notify;

use crate::doubles::{Double, Plan, serve, settle};

const CONNECT: &[u8] = b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n";
const ESTABLISHED: &[u8] = b"HTTP/1.1 200 Connection Established\r\n\r\n";

#[tokio::test(start_paused = true)]
async fn answer_waits_for_tunnel_keeping_early_bytes() {
    let dial = Double::new(Plan::EchoWhenNotified(Notify::new()));
    let Plan::EchoWhenNotified(notify) = &dial.plan else {
        unreachable!()
    };
    let (mut client, server) = duplex(1024);
    let params = Params::default();
    let speak = async {
        client.write_all(CONNECT).await.unwrap();
        client.write_all(b"one ").await.unwrap();
        settle().await;
        client.write_all(b"two ").await.unwrap();
        settle().await;
        let mut answer = vec![0; 1024];
        let silent = tokio::select! {
            biased;
            _ = client.read(&mut answer) => false,
            () = settle() => true,
        };
        assert!(silent, "an answer came before the tunnel was open");
        notify.notify_one();
        settle().await;
        client.write_all(b"three").await.unwrap();
        client.shutdown().await.unwrap();
        let mut all = Vec::new();
        client.read_to_end(&mut all).await.unwrap();
        all
    };
    let double = &dial;
    let (outcome, all) = tokio::join!(serve(server, double, &params), speak);
    assert_eq!(all, [ESTABLISHED, b"one two three"].concat());
    assert_eq!(dial.early.take().unwrap(), "one two ");
    assert_eq!((outcome.received, outcome.sent), (13, 13));
}

#[tokio::test(start_paused = true)]
async fn dial_is_canceled_when_client_leaves() {
    for early in [&b""[..], b"some bytes"] {
        let dial = Double::new(Plan::Hang);
        let (mut client, server) = duplex(1024);
        let params = Params::default();
        let leave = async {
            client.write_all(CONNECT).await.unwrap();
            client.write_all(early).await.unwrap();
            settle().await;
            assert_eq!(dial.targets(), ["a:1"]);
            drop(client);
        };
        let double = &dial;
        let (outcome, ()) = tokio::join!(serve(server, double, &params), leave);
        assert_eq!(
            (outcome.status, outcome.end),
            (None, End::ClientGone.reason())
        );
        assert_eq!(outcome.request.unwrap().target, "a:1");
        assert_eq!(dial.canceled.get(), 1);
    }
}

#[tokio::test]
async fn dial_is_canceled_when_client_socket_closes() {
    let params = Params::default();

    let dial = Double::new(Plan::Hang);
    let (mut client, server) = UnixStream::pair().unwrap();
    client.write_all(CONNECT).await.unwrap();
    drop(client);
    let double = &dial;
    let outcome = serve(server, double, &params).await;
    assert_eq!(
        (outcome.end, dial.canceled.get()),
        (End::ClientGone.reason(), 1)
    );

    let dial = Double::new(Plan::Hang);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap())
        .await
        .unwrap();
    client.write_all(CONNECT).await.unwrap();
    client.set_zero_linger().unwrap();
    let (server, _) = listener.accept().await.unwrap();
    // Only once the dial is under way is the connection reset.
    let leave = async {
        while dial.targets().is_empty() {
            tokio::task::yield_now().await;
        }
        drop(client);
    };
    let double = &dial;
    let (outcome, ()) = tokio::join!(serve(server, double, &params), leave);
    assert_eq!(
        (outcome.end, dial.canceled.get()),
        (End::ClientGone.reason(), 1)
    );
}

#[tokio::test(start_paused = true)]
async fn early_bytes_are_bounded_and_complete() {
    let dial = Double::new(Plan::EchoWhenNotified(Notify::new()));
    let Plan::EchoWhenNotified(notify) = &dial.plan else {
        unreachable!()
    };
    let params = Params {
        early_bytes: 1000,
        ..Params::default()
    };
    let sent: Vec<u8> = (0..20_000_u32).map(|at| at.to_le_bytes()[0]).collect();
    let (client, server) = duplex(64);
    let (mut from, mut to) = tokio::io::split(client);
    let write = async {
        to.write_all(CONNECT).await.unwrap();
        to.write_all(&sent).await.unwrap();
        to.shutdown().await.unwrap();
    };
    let tell = async {
        // Long enough for every byte that is kept, each by itself.
        for _ in 0..2000 {
            tokio::task::yield_now().await;
        }
        notify.notify_one();
    };
    let read = async {
        let mut all = Vec::new();
        from.read_to_end(&mut all).await.unwrap();
        all
    };
    let double = &dial;
    let (outcome, (), (), all) = tokio::join!(serve(server, double, &params), write, tell, read);
    let early = dial.early.take().unwrap();
    assert_eq!(early.len(), 1000);
    assert_eq!(all, [ESTABLISHED, &sent].concat());
    assert_eq!(outcome.received, 20_000);
}

#[tokio::test(start_paused = true)]
async fn tunnel_is_dropped_after_failed_answer() {
    let dial = Double::new(Plan::Echo);
    // Too small for the answer, which is never read.
    let (mut client, server) = duplex(34);
    client.write_all(CONNECT).await.unwrap();
    let double = &dial;
    let outcome = serve(server, double, &Params::default()).await;
    assert_eq!(
        (outcome.status, outcome.end),
        (Some(200), End::AnswerTimeout.reason())
    );
    assert_eq!(dial.unused.get(), 1);
    drop(client);
}

/// A dialed tunnel, the stream and the relay's own state: the head's reading and the dial are in
/// a box that is gone by then.
#[tokio::test]
async fn connection_future_is_small() {
    let dial = Double::new(Plan::Echo);
    let (_client, server) = UnixStream::pair().unwrap();
    let params = Params::default();
    let double = &dial;
    let size = size_of_val(&serve(server, double, &params));
    assert!(size <= 1024, "{size} bytes");
}

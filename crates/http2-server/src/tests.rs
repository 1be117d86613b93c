//! Connections with clients that behave, and with some that do not.

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, DuplexStream, ReadBuf, duplex};
use tokio::task::{JoinSet, LocalSet, spawn_local};

use super::*;

const PARAMS: Params = Params {
    stream_window: 10_000,
    connection_window: 100_000,
    max_frame: 20_000,
    max_streams: 30,
    max_head: 1000,
    max_copied: 4095,
    header_table: 4096,
    send_buffer: 20_000,
};
const BEGIN: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// Gives up no client.
struct Patient;

impl Host<DuplexStream> for Patient {
    fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        io: &mut DuplexStream,
    ) -> Poll<io::Result<Bytes>> {
        let mut bytes = [0; 5000];
        let mut read = ReadBuf::new(&mut bytes);
        ready!(Pin::new(io).poll_read(cx, &mut read))?;
        Poll::Ready(Ok(Bytes::copy_from_slice(read.filled())))
    }

    fn poll_given_up(&mut self, _: &mut Context<'_>, _: &Peer<'_>) -> Poll<()> {
        Poll::Pending
    }
}

/// Serves until the connection ends; it is left when `left` is ready.
async fn serve<F>(io: DuplexStream, stream: fn(Stream) -> F, left: impl Future) -> End
where
    F: Future<Output = ()> + 'static,
{
    let mut server = Server::new(io, PARAMS, Patient, |own, _| stream(own));
    let mut left = std::pin::pin!(left);
    let mut is_left = false;
    let end = poll_fn(|cx| {
        if !is_left && left.as_mut().poll(cx).is_ready() {
            is_left = true;
            server.leave();
        }
        server.poll(cx)
    });
    let end = end.await;
    poll_fn(|cx| server.poll_close(cx)).await.unwrap();
    poll_fn(|cx| server.poll_closed(cx)).await;
    end
}

/// Sends back what comes.
async fn echo(stream: Stream) {
    stream.respond(&[(b":status", b"200")], false);
    loop {
        match poll_fn(|cx| stream.poll_read(cx)).await {
            Ok(Read::Data(bytes)) => {
                stream.consumed(bytes.len());
                if poll_fn(|cx| stream.poll_ready(cx)).await.is_err() {
                    return;
                }
                stream.send(b"", bytes).unwrap();
            }
            Ok(Read::Trailers(_)) => {}
            Ok(Read::End) => return stream.end(&[(b"grpc-status", b"0")]),
            Err(_) => return,
        }
    }
}

/// The same, with another task that reads.
async fn echo_by_two(stream: Stream) {
    let reader = stream.reader();
    let (sender, mut pieces) = tokio::sync::mpsc::channel(1);
    spawn_local(async move {
        while let Ok(Read::Data(bytes)) = poll_fn(|cx| reader.poll_read(cx)).await {
            assert!(!reader.is_at_end() || !bytes.is_empty());
            sender.send(bytes).await.unwrap();
        }
        assert!(reader.is_at_end());
    });
    stream.respond(&[(b":status", b"200")], false);
    while let Some(bytes) = pieces.recv().await {
        poll_fn(|cx| stream.poll_ready(cx)).await.unwrap();
        stream.send(b"", bytes).unwrap();
    }
    stream.end(&[(b"grpc-status", b"0")]);
}

async fn read_all(body: &mut h2::RecvStream) -> BytesMut {
    let mut got = BytesMut::new();
    while let Some(bytes) = body.data().await {
        let bytes = bytes.unwrap();
        body.flow_control().release_capacity(bytes.len()).unwrap();
        got.extend_from_slice(&bytes);
    }
    got
}

/// Sends more than any window holds, and reads it back.
async fn call(client: h2::client::SendRequest<Bytes>) {
    let mut client = client.ready().await.unwrap();
    let request = http::Request::post("http://any/").body(()).unwrap();
    let (response, mut send) = client.send_request(request, false).unwrap();
    let sent: Bytes = (0..90_000u32).map(|at| at.to_le_bytes()[1]).collect();
    send.send_data(sent.clone(), true).unwrap();
    let mut body = response.await.unwrap().into_body();
    let got = read_all(&mut body).await;
    assert_eq!(got, sent);
    assert_eq!(body.trailers().await.unwrap().unwrap()["grpc-status"], "0");
}

async fn call_many(near: DuplexStream) {
    let (client, connection) = h2::client::handshake(near).await.unwrap();
    let connection = tokio::spawn(connection);
    let mut calls = JoinSet::new();
    for _ in 0..25 {
        calls.spawn(call(client.clone()));
    }
    while let Some(called) = calls.join_next().await {
        called.unwrap();
    }
    drop(client);
    connection.await.unwrap().unwrap();
}

#[tokio::test]
async fn streams_of_connection_are_concurrent() {
    let (near, far) = duplex(3000);
    let served = serve(far, echo, std::future::pending::<()>());
    tokio::join!(call_many(near), served);
    LocalSet::new()
        .run_until(async {
            let (near, far) = duplex(3000);
            let served = serve(far, echo_by_two, std::future::pending::<()>());
            tokio::join!(call_many(near), served);
        })
        .await;
}

#[tokio::test]
async fn a_client_is_told_what_it_did_wrong() {
    let push = [0, 0, 0, 5, 4, 0, 0, 0, 1];
    let (mut near, far) = duplex(10_000);
    near.write_all(&[BEGIN, &push].concat()).await.unwrap();
    let mut answer = Vec::new();
    let served = serve(far, echo, std::future::pending::<()>());
    let read = async {
        near.read_to_end(&mut answer).await.unwrap();
        // Who closes a connection was told, by then.
        drop(near);
    };
    let (end, ()) = tokio::join!(served, read);
    assert!(matches!(end, End::Protocol(_)), "{end:?}");
    let goaway = [7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    assert!(answer.windows(14).any(|bytes| bytes == goaway));
}

/// One that it begins before it hears of the end is served, one after that is not.
#[tokio::test]
async fn left_connection_serves_what_was_begun() {
    let (near, far) = duplex(100_000);
    let (leave, left) = tokio::sync::oneshot::channel::<()>();
    let client = async {
        let (client, connection) = h2::client::handshake(near).await.unwrap();
        let connection = tokio::spawn(connection);
        call(client.clone()).await;
        let begun = tokio::spawn(call(client.clone()));
        for _ in 0..5 {
            tokio::task::yield_now().await;
        }
        leave.send(()).unwrap();
        begun.await.unwrap();
        connection.await.unwrap().unwrap();
        let refused = client.ready().await;
        assert!(refused.is_err());
    };
    let (end, ()) = tokio::join!(serve(far, echo, left), client);
    assert!(matches!(end, End::Left), "{end:?}");
}

/// Answers, and lets its reader see that there is nothing more to read.
async fn answer_early(stream: Stream) {
    let reader = stream.reader();
    stream.respond(&[(b":status", b"200")], false);
    stream.send(b"", Bytes::from_static(b"hello")).unwrap();
    stream.end(&[]);
    let shared = Rc::clone(&stream.shared);
    assert!(
        poll_fn(|cx| Poll::Ready(reader.poll_read(cx)))
            .await
            .is_pending()
    );
    drop(stream);
    let read = poll_fn(|cx| reader.poll_read(cx)).await;
    assert_eq!(read, Err(StreamEnd::Lost));
    assert!(!reader.is_at_end());
    drop(reader);
    assert!(shared.wakers.borrow().is_empty());
}

/// The client's window has no room for the answer, and its body has not ended.
#[tokio::test]
async fn reader_ends_with_its_stream() {
    let (near, far) = duplex(100_000);
    let client = async {
        let builder = { h2::client::Builder::new() }
            .initial_window_size(1)
            .clone();
        let (mut client, connection) = builder.handshake::<_, Bytes>(near).await.unwrap();
        let connection = tokio::spawn(connection);
        let request = http::Request::post("http://any/").body(()).unwrap();
        let (response, send) = client.send_request(request, false).unwrap();
        let mut body = response.await.unwrap().into_body();
        let got = read_all(&mut body).await;
        assert_eq!(got, "hello");
        drop((client, send, body));
        connection.await.unwrap().unwrap();
    };
    let served = serve(far, answer_early, std::future::pending::<()>());
    tokio::join!(served, client);
}

//! Frames over a real TCP connection on loopback, and the outgoing half on its own.

use std::future::poll_fn;
use std::net::TcpListener;

use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tunnel_proto::codel::{Band, DropReason};
use tunnel_proto::frame::{Control, Decoder, Frame, Identity, MAX_LEN, put_control};

use super::*;

/// A stream of ours, from which `early` was read ahead, and the other end of its connection.
fn connected(early: &[u8]) -> (Stream, TcpStream) {
    connected_by(TcpListener::bind("127.0.0.1:0").unwrap(), early)
}

/// The same, with so little room in the kernel that a write is rarely taken whole.
fn cramped() -> (Stream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    SockRef::from(&listener).set_recv_buffer_size(4096).unwrap();
    let (stream, other) = connected_by(listener, &[]);
    let socket = SockRef::from(&stream.socket);
    socket.set_send_buffer_size(4096).unwrap();
    (stream, other)
}

fn connected_by(listener: TcpListener, early: &[u8]) -> (Stream, TcpStream) {
    let ours = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (other, _) = listener.accept().unwrap();
    other.set_nonblocking(true).unwrap();
    let stream = Stream::new(ours, early.to_vec(), &StreamParams::default(), start()).unwrap();
    (stream, TcpStream::from_std(other).unwrap())
}

fn start() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// A datagram that tells its number, and whose bytes follow from it.
fn datagram(number: u32) -> Vec<u8> {
    let len = 4 + number as usize * 977 % 1400;
    let mut bytes = vec![number.to_be_bytes()[3]; len];
    bytes[..4].copy_from_slice(&number.to_be_bytes());
    bytes
}

fn put(stream: &mut Stream, now: Instant, datagram: &[u8]) {
    stream.outgoing.slot(now, Band::Bulk, 1500, |buf| {
        buf[..datagram.len()].copy_from_slice(datagram);
        datagram.len()
    });
}

/// Takes frames apart as the format says, without the code under test: kinds and bodies.
fn take_apart(mut bytes: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut frames = Vec::new();
    while let [high, low, rest @ ..] = bytes {
        let len = usize::from(u16::from_be_bytes([high & 0x3f, *low]));
        frames.push((high >> 6, rest[..len].to_vec()));
        bytes = &rest[len..];
    }
    assert!(bytes.is_empty(), "a whole number of frames");
    frames
}

async fn within<T>(wait: impl Future<Output = T>) -> T {
    let limit = Duration::from_secs(30);
    tokio::time::timeout(limit, wait).await.expect("in time")
}

#[tokio::test]
async fn slow_reader_gets_whole_frames_only() {
    let (mut stream, mut other) = cramped();
    let (mut now, mut received) = (start(), Vec::new());
    let mut buffer = [0; 1000];
    for number in 0..4000 {
        put(&mut stream, now, &datagram(number));
        now += Duration::from_millis(1);
        // Once, as the loop that owns streams does.
        let _ = poll_fn(|cx| Poll::Ready(stream.poll_flush(now, cx))).await;
        if number % 8 == 0
            && let Ok(len) = other.try_read(&mut buffer)
        {
            received.extend_from_slice(&buffer[..len]);
        }
        if number % 64 == 0 {
            tokio::task::yield_now().await; // the runtime looks which sockets are ready
        }
    }
    let read = async {
        let done = poll_fn(|cx| stream.poll_flush(now, cx)).await;
        drop(stream.socket.shutdown().await);
        done
    };
    let (done, rest) = within(async { tokio::join!(read, read_all(&mut other)) }).await;
    done.unwrap();
    received.extend(rest);
    let mut last = None;
    let frames = take_apart(&received);
    for (kind, body) in &frames {
        let number = u32::from_be_bytes(body[..4].try_into().unwrap());
        assert_eq!((*kind, body), (0, &datagram(number)));
        assert!(last < Some(number), "{last:?} before {number}");
        last = Some(number);
    }
    let queue = stream.outgoing.stats();
    assert_eq!(queue.popped, frames.len() as u64);
    assert!(queue.dropped[DropReason::Delay as usize] > 0, "{queue:?}");
    let dropped: u64 = queue.dropped.iter().sum();
    assert_eq!(queue.pushed - queue.popped, dropped);
}

async fn read_all(other: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    other.read_to_end(&mut bytes).await.unwrap();
    bytes
}

#[tokio::test]
async fn control_goes_ahead_of_bulk() {
    let (mut stream, mut other) = connected(&[]);
    let now = start();
    put(&mut stream, now, b"bulk");
    let identity = Identity::new("a").unwrap();
    let hello = Control::Hello {
        version: 1,
        instance: 5,
        identity,
    };
    stream.outgoing.control(now, &hello);
    let flushed = within(poll_fn(|cx| stream.poll_flush(now, cx)));
    flushed.await.unwrap();
    stream.socket.shutdown().await.unwrap();
    let frames = take_apart(&within(read_all(&mut other)).await);
    let hello = b"\x01\x01\0\0\0\0\0\0\0\x05\x01a";
    assert_eq!(frames, [(1, hello.to_vec()), (0, b"bulk".to_vec())]);
}

#[tokio::test]
async fn frames_arrive_whole_however_they_were_cut() {
    let identity = Identity::new("vpn-shoot-0").unwrap();
    let hello = Control::Hello {
        version: 1,
        instance: 5,
        identity,
    };
    let mut encoded = bytes::BytesMut::new();
    put_control(&hello, &mut encoded).unwrap();
    for number in 0..200 {
        let body = datagram(number);
        encoded.extend_from_slice(&u16::try_from(body.len()).unwrap().to_be_bytes());
        encoded.extend_from_slice(&body);
    }
    for cut in [1, 2, 700, 4000] {
        let (early, rest) = encoded.split_at(cut);
        let (mut stream, mut other) = connected(early);
        assert!(stream.first_frame_by.is_some());
        let send = async {
            for chunk in rest.chunks(cut * 3) {
                other.write_all(chunk).await.unwrap();
            }
            other.shutdown().await.unwrap();
        };
        let (mut hellos, mut datagrams) = (0, Vec::new());
        let mut buffer = vec![0; 1111];
        let mut decoder = Decoder::new(MAX_LEN);
        let receive = async {
            loop {
                let len = match poll_fn(|cx| stream.poll_read(cx, &mut buffer)).await {
                    Ok(len) => len,
                    Err(error) => return error,
                };
                let mut input = &buffer[..len];
                while let Some(frame) = decoder.next(&mut input).unwrap() {
                    match frame {
                        Frame::Control(control) => {
                            assert_eq!(control, hello);
                            hellos += 1;
                        }
                        Frame::Datagram(body) => datagrams.push(body.to_vec()),
                    }
                }
            }
        };
        let ((), error) = within(async { tokio::join!(send, receive) }).await;
        assert_eq!(error.reason(), "closed");
        assert_eq!(hellos, 1);
        assert!(datagrams.into_iter().eq((0..200).map(datagram)));
        stream.heard();
        let later = start() + Duration::from_secs(60);
        assert!(!stream.is_late(later));
    }
}

#[tokio::test]
async fn early_bytes_come_first_one_buffer_per_read() {
    let (mut stream, mut other) = connected(&[1; 700]);
    other.write_all(&[2; 100]).await.unwrap();
    let mut buffer = vec![0; 600];
    let mut sizes = Vec::new();
    for _ in 0..3 {
        let read = poll_fn(|cx| stream.poll_read(cx, &mut buffer));
        sizes.push((within(read).await.unwrap(), buffer[0]));
    }
    assert_eq!(sizes, [(600, 1), (100, 1), (100, 2)]);
    let last = poll_fn(|cx| Poll::Ready(stream.poll_read(cx, &mut buffer)));
    assert!(last.await.is_pending());
}

#[tokio::test]
async fn missing_hello_is_an_error_after_timeout() {
    let (stream, _other) = connected(&[]);
    let by = stream.first_frame_by.unwrap();
    assert!(!stream.is_late(by - Duration::from_millis(1)) && stream.is_late(by));
    assert_eq!(StreamError::NoHello.reason(), "no_hello");
}

#[tokio::test]
async fn socket_has_no_delay() {
    let (stream, _other) = connected(&[]);
    assert!(stream.socket.nodelay().unwrap());
}

#[test]
fn oversized_or_empty_frame_is_not_queued() {
    let (now, mut outgoing) = (start(), Outgoing::new(codel::Params::default(), 0));
    outgoing.slot(now, Band::Bulk, 100, |_| 0);
    outgoing.slot(now, Band::Bulk, 20_000, |_| 20_000);
    assert!(outgoing.is_empty());
}

#[tokio::test]
async fn little_waits_in_kernel_ahead_of_slow_line() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    // As on a line; loopback's segments are larger than these buffers.
    SockRef::from(&listener).set_tcp_mss(1400).unwrap();
    SockRef::from(&listener).set_recv_buffer_size(4096).unwrap();
    let (mut stream, other) = connected_by(listener, &[]);
    let limit = |stream: &Stream| SockRef::from(&stream.socket).tcp_notsent_lowat().unwrap();
    SockRef::from(&stream.socket)
        .set_tcp_notsent_lowat(64 * 1024)
        .unwrap();
    let (mut now, mut buffer, mut received) = (start(), [0; 5000], 0);
    for number in 0..1000 {
        (0..10).for_each(|_| put(&mut stream, now, &datagram(number)));
        let flushed = poll_fn(|cx| Poll::Ready(stream.poll_flush(now, cx))).await;
        assert!(!matches!(flushed, Poll::Ready(Err(_))), "{flushed:?}");
        // 4 Mb/s, of a clock of our own.
        received += other.try_read(&mut buffer).unwrap_or_default();
        now += Duration::from_millis(10);
        tokio::task::yield_now().await; // the runtime looks which sockets are ready
    }
    assert!(received > 1_000_000, "{received}");
    assert_eq!(limit(&stream), 8 * 1024);
}

//! A stream beside rustls' own, buffered connection, which cuts its records as a test wants them.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};
use std::thread;
use std::time::Duration;

use rustls::ClientConnection;
use testkit::certs::{
    Authority, client_config, mutual_client_config, mutual_server_config, server_config,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

const LIMIT: Duration = Duration::from_secs(30);

/// A client that keeps what it would send.
struct Peer {
    sent: usize,
    tls: ClientConnection,
    socket: std::net::TcpStream,
}

impl Peer {
    /// Sends what TLS has to say, in pieces of `size` bytes.
    fn send(&mut self, size: usize) {
        for piece in self.records().chunks(size) {
            self.socket.write_all(piece).unwrap();
        }
    }

    fn records(&mut self) -> Vec<u8> {
        let mut records = Vec::new();
        while self.tls.wants_write() {
            self.tls.write_tls(&mut records).unwrap();
        }
        self.sent += records.len();
        records
    }

    fn shake_hands(&mut self, size: usize) {
        while self.tls.is_handshaking() {
            self.send(size);
            if self.tls.is_handshaking() {
                self.tls.read_tls(&mut self.socket).unwrap();
                self.tls.process_new_packets().unwrap();
            }
        }
        self.send(size);
    }

    fn write(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.tls.set_buffer_limit(None);
        self.tls.writer().write_all(bytes).unwrap();
        self.records()
    }

    /// Waits for a first byte: what is sent before may be read with the handshake, and fail that as a whole.
    fn hear(&mut self) {
        while self.tls.reader().read(&mut [0]).is_err() {
            self.tls.read_tls(&mut self.socket).unwrap();
            self.tls.process_new_packets().unwrap();
        }
    }

    /// Reads until the end that TLS says; returns what came.
    fn read_to_end(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        loop {
            let state = self.tls.process_new_packets().unwrap();
            let mut piece = vec![0; state.plaintext_bytes_to_read()];
            self.tls.reader().read_exact(&mut piece).unwrap();
            all.extend(piece);
            if state.peer_has_closed() || self.tls.read_tls(&mut self.socket).unwrap() == 0 {
                return all;
            }
        }
    }
}

/// Accepts a client that does what `script` says on a thread of its own.
async fn accepted<T: Send + 'static>(
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
    piece: usize,
    script: impl FnOnce(Peer) -> T + Send + 'static,
) -> (ServerStream, thread::JoinHandle<T>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let peer = thread::spawn(move || {
        let socket = std::net::TcpStream::connect(address).unwrap();
        socket.set_nodelay(true).unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        let name = ServerName::try_from("a.test").unwrap();
        let tls = ClientConnection::new(client, name).unwrap();
        let mut peer = Peer {
            sent: 0,
            tls,
            socket,
        };
        peer.shake_hands(piece);
        script(peer)
    });
    let (mut socket, _) = listener.accept().unwrap();
    // As those that were read for the server's name.
    let mut early = vec![0; 50];
    socket.read_exact(&mut early).unwrap();
    socket.set_nonblocking(true).unwrap();
    let socket = tokio::net::TcpStream::from_std(socket).unwrap();
    let (wire, _) = Wire::new(socket, early.len());
    let stream = accept(server, wire, early).await.unwrap();
    (stream, peer)
}

fn configs() -> (Arc<ServerConfig>, Arc<ClientConfig>) {
    let authority = Authority::new("ca").unwrap();
    let server = server_config(&authority.server(&["a.test"]).unwrap()).unwrap();
    (server, client_config(authority.pem()).unwrap())
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| (at % 251) as u8 ^ (at / 1000) as u8)
        .collect()
}

#[tokio::test]
async fn stream_loses_nothing_however_little_is_read_at_a_time() {
    let (server, client) = configs();
    for room in [1, 1000, 8192, 65_536] {
        let (mut stream, peer) = accepted(
            Arc::clone(&server),
            Arc::clone(&client),
            1 << 20,
            move |mut peer| {
                let records = peer.write(&pattern(200_000));
                for piece in records.chunks(room) {
                    peer.socket.write_all(piece).unwrap();
                }
                peer.tls.send_close_notify();
                peer.send(1);
                peer.socket
            },
        )
        .await;
        let (mut all, mut buffer) = (Vec::new(), vec![0; room]);
        loop {
            match stream.read(&mut buffer).await.unwrap() {
                0 => break,
                len => all.extend_from_slice(&buffer[..len]),
            }
        }
        assert!(all == pattern(200_000), "{room}: {} bytes", all.len());
        peer.join().unwrap();
    }
}

/// The budget of a task ends in the middle of what came at once.
#[tokio::test]
async fn stream_loses_nothing_where_a_task_has_to_yield() {
    let (server, client) = configs();
    let (mut stream, peer) = accepted(server, client, 1 << 20, |mut peer| {
        let records = peer.write(&pattern(40_000));
        peer.socket.write_all(&records).unwrap();
        peer.socket
    })
    .await;
    let _socket = peer.join().unwrap();
    // All of it is in the socket by now.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let mut all = Vec::new();
    for spent in (100..=128).rev() {
        let read = tokio::spawn(async move {
            let mut buffer = vec![0; 1000];
            let mut into = ReadBuf::new(&mut buffer);
            let polled = poll_fn(|cx| {
                for _ in 0..spent {
                    if let Poll::Ready(unit) = coop::poll_proceed(cx) {
                        unit.made_progress();
                    }
                }
                Poll::Ready(Pin::new(&mut stream).poll_read(cx, &mut into))
            });
            let polled = polled.await;
            let filled = into.filled().to_vec();
            assert!(polled.is_ready() || filled.is_empty(), "{spent}");
            (stream, filled)
        });
        let (own, filled) = read.await.unwrap();
        stream = own;
        all.extend(filled);
    }
    let mut rest = vec![0; 40_000 - all.len()];
    stream.read_exact(&mut rest).await.unwrap();
    all.extend(rest);
    assert!(all == pattern(40_000));
}

#[tokio::test]
async fn handshake_may_come_a_byte_at_a_time() {
    let authority = Authority::new("ca").unwrap();
    let server = authority.server(&["a.test"]).unwrap();
    // A certificate that is larger than a record.
    let uris: Vec<String> = (0..1000).map(|at| format!("uri:{at:020}")).collect();
    let uris: Vec<&str> = uris.iter().map(String::as_str).collect();
    let client = authority.client("user", &[], &uris).unwrap();
    let server = mutual_server_config(&server, Some(authority.pem()), &[]).unwrap();
    let client = mutual_client_config(authority.pem(), Some(&client), &[]).unwrap();
    let (mut stream, peer) = accepted(server, client, 1, |mut peer| {
        let records = peer.write(b"hello");
        peer.socket.write_all(&records).unwrap();
        peer.socket
    })
    .await;
    assert_eq!(
        stream.session().peer_certificates().map(<[_]>::len),
        Some(1)
    );
    let mut word = [0; 5];
    stream.read_exact(&mut word).await.unwrap();
    assert_eq!(&word, b"hello");
    assert!(stream.partial.is_empty() && stream.plain.is_empty());
    peer.join().unwrap();
}

#[tokio::test]
async fn bad_record_fails_behind_what_came_ahead_of_it() {
    let (server, client) = configs();
    let (mut stream, peer) = accepted(server, client, 1 << 20, |mut peer| {
        peer.hear();
        let mut records = peer.write(&pattern(3000));
        let mut bad = peer.write(b"bad");
        *bad.last_mut().unwrap() ^= 1;
        records.extend(bad);
        peer.socket.write_all(&records).unwrap();
        // What it is told is one alert, and no more.
        let mut heard = Vec::new();
        let _ = peer.socket.read_to_end(&mut heard);
        heard
    })
    .await;
    stream.write_all(b"!").await.unwrap();
    let (mut all, mut buffer) = (Vec::new(), vec![0; 1000]);
    let error = loop {
        match stream.read(&mut buffer).await {
            Ok(len) => all.extend_from_slice(&buffer[..len]),
            Err(error) => break error,
        }
        assert!(all.len() <= 3000);
    };
    assert_eq!(
        (all, error.kind()),
        (pattern(3000), io::ErrorKind::InvalidData)
    );
    assert!(stream.read(&mut buffer).await.is_err());
    assert!(stream.write_all(b"more").await.is_err());
    drop(stream);
    let alert = peer.join().unwrap();
    // RFC 8446 section 5.2: a record of one alert has 5 bytes of header, 2, its type and a tag.
    assert_eq!(alert.len(), 5 + 2 + 1 + 16);
}

#[tokio::test]
async fn end_without_notice_is_an_error() {
    let (server, client) = configs();
    let (mut stream, peer) = accepted(server, client, 1 << 20, |mut peer| {
        let records = peer.write(b"half");
        peer.socket.write_all(&records).unwrap();
        peer.socket.shutdown(Shutdown::Write).unwrap();
        peer.socket
    })
    .await;
    let mut all = Vec::new();
    let error = stream.read_to_end(&mut all).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    assert_eq!(all, b"half");
    peer.join().unwrap();
}

#[tokio::test]
async fn both_directions_end_apart_and_nothing_behind_an_end_is_kept() {
    let (server, client) = configs();
    let (mut stream, peer) = accepted(server, client, 1 << 20, |mut peer| {
        peer.tls.send_close_notify();
        let mut records = peer.records();
        records.extend([0; 60_000]);
        peer.socket.write_all(&records).unwrap();
        peer.read_to_end()
    })
    .await;
    let mut nothing = Vec::new();
    stream.read_to_end(&mut nothing).await.unwrap();
    assert_eq!(nothing, b"");
    assert!(stream.partial.is_empty() && stream.plain.is_empty());
    let sent = pattern(300_000);
    stream.write_all(&sent).await.unwrap();
    stream.flush().await.unwrap();
    stream.shutdown().await.unwrap();
    stream.shutdown().await.unwrap();
    assert!(peer.join().unwrap() == sent);
}

#[tokio::test]
async fn flood_of_key_updates_ends() {
    let (server, client) = configs();
    let (mut stream, peer) = accepted(server, client, 1 << 20, |mut peer| {
        peer.hear();
        for _ in 0..10_000 {
            peer.tls.refresh_traffic_keys().unwrap();
            let records = peer.records();
            if peer.socket.write_all(&records).is_err() {
                break;
            }
        }
        peer.socket
    })
    .await;
    stream.write_all(b"!").await.unwrap();
    let error = stream.read(&mut [0; 100]).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    assert!(stream.plain.is_empty());
    drop(stream);
    peer.join().unwrap();
}

#[tokio::test]
async fn bytes_that_were_read_before_are_counted() {
    let (server, client) = configs();
    let (mut stream, peer) = accepted(server, client, 1 << 20, |mut peer| {
        let records = peer.write(b"hello");
        peer.socket.write_all(&records).unwrap();
        peer
    })
    .await;
    stream.read_exact(&mut [0; 5]).await.unwrap();
    assert_eq!(stream.wire.received(), peer.join().unwrap().sent as u64);
}

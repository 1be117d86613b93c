//! Loads through the smallest proxy there can be: no agent, one task for each tunnel.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use testkit::tempdir::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpStream, UnixListener, UnixStream};

use super::frontend::Frontend;
use super::load::{self, Load};

/// Serves a UNIX socket on the runtime of the caller.
pub(super) fn serve_uds(dir: &TempDir) -> PathBuf {
    let path = dir.join("frontend");
    let listener = UnixListener::bind(&path).unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve_connect(stream));
        }
    });
    path
}

async fn serve_connect(mut stream: UnixStream) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap();
    let target = head.split(' ').nth(1).unwrap();
    let Ok(mut upstream) = TcpStream::connect(target).await else {
        let answer = b"HTTP/1.1 502 Bad Gateway\r\n\r\nconnection refused";
        let _ = stream.write_all(answer).await;
        return;
    };
    upstream.set_nodelay(true).unwrap();
    let answer = b"HTTP/1.1 200 Connection Established\r\n\r\n";
    stream.write_all(answer).await.unwrap();
    stream.flush().await.unwrap();
    let _ = copy_bidirectional(&mut stream, &mut upstream).await;
}

#[tokio::test]
async fn refusal_carries_the_proxys_text() {
    let dir = TempDir::new("bench-refused").unwrap();
    let path = serve_uds(&dir);
    let closed = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
    let frontend = Frontend::Uds { grpc: false, path };
    let error = frontend.dial(closed).await.unwrap_err();
    assert!(error.to_string().contains("refused"), "{error}");
}

#[tokio::test]
async fn unanswered_ping_is_counted_not_awaited() {
    let dir = TempDir::new("bench-silent").unwrap();
    let path = serve_uds(&dir);
    // Connections are made by the kernel, and nothing reads from them.
    let silent = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let load = Load {
        connections: 1,
        warm_up: Duration::ZERO,
        length: Duration::from_millis(50),
        interval: None,
    };
    let hold = silent.local_addr().unwrap();
    let frontend = Frontend::Uds { grpc: false, path };
    let pings = load::pings(&frontend, hold, load).await.unwrap();
    assert_eq!(pings.unanswered, 1);
    assert!(pings.latencies.max() >= load::GRACE);
}

//! The clients against the smallest proxies there can be: no agent, one task a tunnel.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use knp_proto::frame::{Deframer, HEAD, put_head};
use knp_proto::packet::MAX_MESSAGE;
use knp_proto::{ConnectId, Packet};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use testkit::tempdir::TempDir;
use testkit::wait;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio_rustls::TlsAcceptor;

use super::credentials::{Credentials, client_config};
use super::frontend::Frontend;
use super::load::{self, Direction, Load};
use crate::destination::{Behaviour, Destination};

#[tokio::test]
async fn connect_over_a_socket_carries_every_load() {
    let dir = TempDir::new("bench-http").unwrap();
    let path = serve_uds(&dir, false);
    every_load(&Frontend::Uds { grpc: false, path }).await;
}

#[tokio::test]
async fn packets_over_a_socket_carry_every_load() {
    let dir = TempDir::new("bench-grpc").unwrap();
    let path = serve_uds(&dir, true);
    every_load(&Frontend::Uds { grpc: true, path }).await;
}

#[tokio::test]
async fn connect_and_packets_over_tls_carry_every_load() {
    for grpc in [false, true] {
        let dir = TempDir::new("bench-tls").unwrap();
        let credentials = Credentials::make(&dir).unwrap();
        let addr = serve_tls(&credentials, grpc).await;
        let config = client_config(
            &credentials.frontend_ca,
            &credentials.apiserver,
            grpc,
            false,
        );
        every_load(&Frontend::Tls {
            grpc,
            addr,
            name: ServerName::try_from("localhost").unwrap(),
            config: config.unwrap(),
        })
        .await;
    }
}

#[tokio::test]
async fn a_refusal_is_told_in_the_servers_words() {
    for grpc in [false, true] {
        let dir = TempDir::new("bench-refused").unwrap();
        let path = serve_uds(&dir, grpc);
        let nobody = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        let error = Frontend::Uds { grpc, path }.dial(nobody).await.unwrap_err();
        assert!(error.to_string().contains("refused"), "{error}");
    }
}

async fn every_load(frontend: &Frontend) {
    let destination = Destination::start(IpAddr::V4(Ipv4Addr::LOCALHOST)).unwrap();
    for (direction, behaviour) in [
        (Direction::Down, Behaviour::Source),
        (Direction::Up, Behaviour::Sink),
    ] {
        let target = destination.address(behaviour);
        load::bulk(frontend, target, direction, 3_000_001, 2)
            .await
            .unwrap();
    }
    let echo = destination.address(Behaviour::Echo);
    let mut load = Load {
        connections: 2,
        warm_up: Duration::ZERO,
        length: Duration::from_millis(200),
        interval: None,
    };
    let pings = load::pings(frontend, echo, load).await.unwrap();
    assert!(pings.latencies.count() > 0 && pings.unanswered == 0);
    load.interval = Some(Duration::from_millis(10));
    let dials = load::dials(frontend, echo, load).await.unwrap();
    assert!(dials.latencies.count() > 0 && dials.unanswered == 0);
    load::many_dials(frontend, echo, 7, 2).await.unwrap();
    load::close(load::hold(frontend, echo, 3).await.unwrap()).await;
    let limit = Duration::from_secs(20);
    let none_left = async {
        while destination.open() > 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(limit, none_left).await.unwrap();
}

/// Serves a UNIX socket on the runtime of the caller.
pub(super) fn serve_uds(dir: &TempDir, grpc: bool) -> PathBuf {
    let path = dir.join("frontend");
    let listener = UnixListener::bind(&path).unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, grpc));
        }
    });
    path
}

async fn serve_tls(credentials: &Credentials, grpc: bool) -> SocketAddr {
    let ca = CertificateDer::from_pem_file(&credentials.frontend_ca).unwrap();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(ca).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier.build().unwrap())
        .with_single_cert(
            vec![CertificateDer::from_pem_file(&credentials.frontend.cert).unwrap()],
            PrivateKeyDer::from_pem_file(&credentials.frontend.key).unwrap(),
        )
        .unwrap();
    config.alpn_protocols = vec![b"h2".into(), b"http/1.1".into()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                if let Ok(stream) = acceptor.accept(stream).await {
                    serve(stream, grpc).await;
                }
            });
        }
    });
    addr
}

async fn serve<S: AsyncRead + AsyncWrite + Unpin>(stream: S, grpc: bool) {
    if grpc {
        serve_grpc(stream).await;
    } else {
        serve_connect(stream).await;
    }
}

async fn serve_connect<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S) {
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

async fn serve_grpc<S: AsyncRead + AsyncWrite + Unpin>(stream: S) {
    let mut server = h2::server::handshake(stream).await.unwrap();
    let mut tunnel = None;
    // Polling the connection is what moves the tunnel's frames.
    while let Some(Ok((request, respond))) = server.accept().await {
        assert_eq!(request.uri().path(), "/ProxyService/Proxy");
        assert_eq!(request.headers()["content-type"], "application/grpc");
        let receive = request.into_body();
        tunnel = Some(tokio::spawn(grpc_tunnel(receive, respond)));
    }
    if let Some(tunnel) = tunnel {
        tunnel.abort();
    }
}

async fn grpc_tunnel(mut receive: h2::RecvStream, mut respond: h2::server::SendResponse<Bytes>) {
    let mut deframer = Deframer::new(MAX_MESSAGE);
    let Some(Packet::DialRequest {
        address, random, ..
    }) = next(&mut receive, &mut deframer).await
    else {
        panic!("a dial comes first");
    };
    let dialled = TcpStream::connect(&address).await;
    let mut send = respond
        .send_response(http::Response::new(()), false)
        .unwrap();
    let connect_id = ConnectId(i64::from(dialled.is_ok()));
    let error = dialled.as_ref().err().map(ToString::to_string);
    let answer = Packet::DialResponse {
        error: error.unwrap_or_default(),
        connect_id,
        random,
    };
    packet(&mut send, answer);
    let Ok(stream) = dialled else {
        end(&mut send);
        return;
    };
    stream.set_nodelay(true).unwrap();
    let (mut read, mut write) = stream.into_split();
    let mut buf = vec![0; 16 * 1024];
    loop {
        tokio::select! {
            read = read.read(&mut buf) => {
                let len = read.unwrap_or(0);
                if len == 0 {
                    break;
                }
                let data = Bytes::copy_from_slice(&buf[..len]);
                send.reserve_capacity(len + 64);
                while send.capacity() < len + 64 {
                    let more = std::future::poll_fn(|cx| send.poll_capacity(cx)).await;
                    if !matches!(more, Some(Ok(_))) {
                        return;
                    }
                }
                packet(&mut send, Packet::Data { connect_id, data });
            }
            packet = next(&mut receive, &mut deframer) => match packet {
                Some(Packet::Data { data, .. }) => write.write_all(&data).await.unwrap(),
                Some(Packet::CloseRequest { .. }) => break,
                other => {
                    assert!(other.is_none(), "{other:?}");
                    return;
                }
            },
        }
    }
    let error = String::new();
    packet(&mut send, Packet::CloseResponse { connect_id, error });
    end(&mut send);
}

/// A stream that is dropped without an end is reset, and what was not yet sent is lost.
fn end(send: &mut h2::SendStream<Bytes>) {
    let mut trailers = http::HeaderMap::new();
    trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
    let _ = send.send_trailers(trailers);
}

async fn next(receive: &mut h2::RecvStream, deframer: &mut Deframer) -> Option<Packet> {
    loop {
        if let Some(message) = deframer.next_message().unwrap() {
            return Some(Packet::decode(message).unwrap());
        }
        let piece = receive.data().await?.ok()?;
        receive
            .flow_control()
            .release_capacity(piece.len())
            .unwrap();
        deframer.push(piece);
    }
}

fn packet(send: &mut h2::SendStream<Bytes>, packet: Packet) {
    let mut body = BytesMut::new();
    packet.encode(&mut body);
    let mut message = BytesMut::with_capacity(HEAD + body.len());
    put_head(body.len(), &mut message);
    message.put(body);
    let _ = send.send_data(message.freeze(), false);
}

#[tokio::test]
async fn what_never_answers_is_counted_and_not_waited_for() {
    let dir = TempDir::new("bench-silent").unwrap();
    let path = serve_uds(&dir, false);
    let destination = Destination::start(IpAddr::V4(Ipv4Addr::LOCALHOST)).unwrap();
    let load = Load {
        connections: 1,
        warm_up: Duration::ZERO,
        length: Duration::from_millis(50),
        interval: None,
    };
    let hold = destination.address(Behaviour::Hold);
    let frontend = Frontend::Uds { grpc: false, path };
    let pings = load::pings(&frontend, hold, load).await.unwrap();
    assert_eq!(pings.unanswered, 1);
    assert!(pings.latencies.max() >= load::GRACE);
    destination.release();
    wait::until("it to be closed", Duration::from_secs(20), || {
        destination.release();
        destination.open() == 0
    })
    .unwrap();
}

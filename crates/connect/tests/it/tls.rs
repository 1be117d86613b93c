//! The TLS entrance.

use std::sync::Arc;
use std::time::Duration;

use connect::{AcceptError, Accepted, Params, accept_tls, accept_tls_by_name};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use testkit::certs::{self, Authority, Identity};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::net::TcpSocket;
use tokio_rustls::TlsConnector;

use crate::doubles::{Double, Plan, serve};

const LIMIT: Duration = Duration::from_secs(10);

struct Side {
    authority: Authority,
    server: Arc<ServerConfig>,
}

impl Side {
    /// A server called `name` that demands certificates of its own authority.
    fn new(name: &str) -> Self {
        let authority = Authority::new(name).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(certificate(authority.pem())).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
                .build()
                .unwrap();
        let identity = authority.server(&[name]).unwrap();
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier)
            .with_single_cert(vec![certificate(&identity.cert_pem)], key(&identity))
            .unwrap();
        server.alpn_protocols = vec![b"http/1.1".to_vec()];
        Self {
            authority,
            server: Arc::new(server),
        }
    }

    /// A client that trusts this server and shows `identity`.
    fn client(&self, identity: Option<&Identity>) -> ClientConfig {
        let trusting = certs::client_config(self.authority.pem()).unwrap();
        let Some(identity) = identity else {
            return (*trusting).clone();
        };
        let mut roots = RootCertStore::empty();
        roots.add(certificate(self.authority.pem())).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_client_auth_cert(vec![certificate(&identity.cert_pem)], key(identity))
            .unwrap()
    }
}

fn certificate(pem: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()
}

fn key(identity: &Identity) -> PrivateKeyDer<'static> {
    PrivateKeyDer::from_pem_slice(identity.key_pem.as_bytes()).unwrap()
}

type Handshake = Result<Accepted<DuplexStream>, AcceptError>;

/// Lets a client shake hands, send something and read until the end; returns what either side saw.
async fn shake(
    server: Arc<ServerConfig>,
    client: ClientConfig,
    name: &str,
) -> (Handshake, std::io::Result<Vec<u8>>) {
    let (ours, theirs) = duplex(64 * 1024);
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let speak = async {
        let connector = TlsConnector::from(Arc::new(client));
        let mut stream = connector.connect(name, theirs).await?;
        stream.write_all(b"hello").await?;
        let mut all = Vec::new();
        stream.read_to_end(&mut all).await?;
        Ok(all)
    };
    let accept = async {
        let mut accepted = accept_tls(ours, server, LIMIT).await?;
        accepted.stream.write_all(b"welcome").await.unwrap();
        accepted.stream.shutdown().await.unwrap();
        Ok(accepted)
    };
    tokio::join!(accept, speak)
}

#[tokio::test]
async fn client_with_certificate_is_accepted_by_name() {
    let side = Side::new("server.example");
    let identity = side.authority.client("kube-apiserver", &[], &[]).unwrap();
    let client = side.client(Some(&identity));
    let (accepted, read) = shake(Arc::clone(&side.server), client, "Server.Example").await;
    let accepted = accepted.unwrap();
    assert_eq!(accepted.server_name.as_deref(), Some("server.example"));
    let certificates = accepted.stream.get_ref().1.peer_certificates().unwrap();
    assert_eq!(certificates, [certificate(&identity.cert_pem)]);
    assert_eq!(read.unwrap(), b"welcome");
}

#[tokio::test]
async fn client_without_certificate_gets_alert() {
    let side = Side::new("server.example");
    let client = side.client(None);
    let (refused, read) = shake(Arc::clone(&side.server), client, "server.example").await;
    let refused = refused.unwrap_err();
    assert!(
        matches!(refused, AcceptError::NoClientCertificate),
        "{refused:?}"
    );
    // The alert, not a stream that merely ends.
    let told = read.unwrap_err().downcast::<rustls::Error>().unwrap();
    assert!(matches!(told, rustls::Error::AlertReceived(_)), "{told:?}");
}

/// Closing at once would reset the connection, since there is something unread, and the reset
/// would overtake the alert.
#[tokio::test]
async fn alert_survives_bytes_client_still_sends() {
    let side = Side::new("server.example");
    // Small buffers, so that the client is still sending when the server makes up its mind.
    let [listening, connecting] = [TcpSocket::new_v4().unwrap(), TcpSocket::new_v4().unwrap()];
    listening.set_recv_buffer_size(4096).unwrap();
    connecting.set_send_buffer_size(4096).unwrap();
    listening.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = listening.listen(1).unwrap();
    let addr = listener.local_addr().unwrap();
    let connector = TlsConnector::from(Arc::new(side.client(None)));
    let speak = async {
        let name = ServerName::try_from("server.example").unwrap();
        let stream = connecting.connect(addr).await.unwrap();
        // In TLS 1.3 the client is done before the server has seen that there is no certificate.
        let mut stream = connector.connect(name, stream).await.unwrap();
        stream.write_all(&[b'y'; 100_000]).await.unwrap();
        stream.read_to_end(&mut Vec::new()).await.unwrap_err()
    };
    let accept = async {
        let (stream, _) = listener.accept().await.unwrap();
        accept_tls(stream, side.server, LIMIT).await.unwrap_err()
    };
    let (refused, told) = tokio::join!(accept, speak);
    assert_eq!(refused.reason(), "no_client_certificate", "{refused:?}");
    let told = told.downcast::<rustls::Error>().unwrap();
    assert!(matches!(told, rustls::Error::AlertReceived(_)), "{told:?}");
}

#[tokio::test]
async fn foreign_certificate_is_distinguished() {
    let side = Side::new("server.example");
    let other = Authority::new("other").unwrap();
    let client = side.client(Some(&other.client("kube-apiserver", &[], &[]).unwrap()));
    let (refused, read) = shake(Arc::clone(&side.server), client, "server.example").await;
    let refused = refused.unwrap_err();
    assert_eq!(refused.reason(), "bad_client_certificate", "{refused:?}");
    assert!(read.is_err());
}

#[tokio::test]
async fn distrusting_client_is_distinguished() {
    let side = Side::new("server.example");
    let other = Side::new("server.example");
    let (refused, read) = shake(
        Arc::clone(&side.server),
        other.client(None),
        "server.example",
    )
    .await;
    let refused = refused.unwrap_err();
    assert_eq!(refused.reason(), "refused_by_client", "{refused:?}");
    assert!(read.is_err());
}

#[tokio::test]
async fn missing_common_protocol_fails_handshake() {
    let side = Side::new("server.example");
    let identity = side.authority.client("kube-apiserver", &[], &[]).unwrap();
    let mut client = side.client(Some(&identity));
    client.alpn_protocols = vec![b"h2".to_vec()];
    let (refused, _) = shake(Arc::clone(&side.server), client, "server.example").await;
    let refused = refused.unwrap_err();
    assert_eq!(refused.reason(), "handshake_failed", "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn tls_failures_of_clients_are_distinguished() {
    let side = Side::new("server.example");
    let cases = [
        (&b""[..], false, "handshake_timeout"),
        (b"\x16\x03\x01", false, "handshake_timeout"),
        (b"CONNECT a:1 HTTP/1.1\r\n\r\n", false, "not_tls"),
        (b"", true, "client_gone"),
        (b"\x16\x03\x01", true, "client_gone"),
    ];
    for (sent, leaves, reason) in cases {
        let (ours, mut theirs) = duplex(1024);
        theirs.write_all(sent).await.unwrap();
        let kept = (!leaves).then_some(theirs);
        let refused = accept_tls(ours, Arc::clone(&side.server), LIMIT).await;
        let refused = refused.unwrap_err();
        assert_eq!(refused.reason(), reason, "{sent:?}: {refused:?}");
        drop(kept);
    }
}

/// The ClientHello comes, and nothing after it.
#[tokio::test(start_paused = true)]
async fn stopped_handshake_times_out() {
    let side = Side::new("server.example");
    let (ours, mut theirs) = duplex(64 * 1024);
    let hello = {
        let client = Arc::new(side.client(None));
        let name = ServerName::try_from("server.example").unwrap();
        let mut session = rustls::ClientConnection::new(client, name).unwrap();
        let mut hello = Vec::new();
        session.write_tls(&mut hello).unwrap();
        hello
    };
    theirs.write_all(&hello).await.unwrap();
    let refused = accept_tls(ours, side.server, LIMIT).await.unwrap_err();
    assert!(
        matches!(refused, AcceptError::TimedOut(LIMIT)),
        "{refused:?}"
    );
    drop(theirs);
}

#[tokio::test]
async fn settings_are_chosen_by_server_name() {
    let sides = [Side::new("a.example"), Side::new("b.example")];
    for (at, name) in [(0, "a.example"), (1, "b.example")] {
        let side = &sides[at];
        let identity = side.authority.client("kube-apiserver", &[], &[]).unwrap();
        let client = side.client(Some(&identity));
        let (ours, theirs) = duplex(64 * 1024);
        let connector = TlsConnector::from(Arc::new(client));
        let asked = ServerName::try_from(name).unwrap();
        let choose = |asked: Option<&str>| {
            let at = usize::from(asked == Some("b.example"));
            Arc::clone(&sides[at].server)
        };
        let (accepted, connected) = tokio::join!(
            accept_tls_by_name(ours, choose, LIMIT),
            connector.connect(asked, theirs)
        );
        assert_eq!(accepted.unwrap().server_name.as_deref(), Some(name));
        connected.unwrap();
    }
}

#[tokio::test]
async fn tunnel_runs_over_tls() {
    let side = Side::new("server.example");
    let identity = side.authority.client("kube-apiserver", &[], &[]).unwrap();
    let (ours, theirs) = duplex(64 * 1024);
    let connector = TlsConnector::from(Arc::new(side.client(Some(&identity))));
    let dial = Double::new(Plan::Echo);
    let ask = async {
        let name = ServerName::try_from("server.example").unwrap();
        let mut stream = connector.connect(name, theirs).await.unwrap();
        let head = b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n";
        stream.write_all(head).await.unwrap();
        let expected = b"HTTP/1.1 200 Connection Established\r\n\r\n";
        let mut answer = vec![0; expected.len()];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(answer, expected);
        stream.write_all(b"hello").await.unwrap();
        stream.shutdown().await.unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).await.unwrap();
        all
    };
    let answer = async {
        let accepted = accept_tls(ours, side.server, LIMIT).await.unwrap();
        let double = &dial;
        serve(accepted.stream, double, &Params::default()).await
    };
    let (outcome, all) = tokio::join!(answer, ask);
    assert_eq!(all, b"hello");
    assert_eq!(outcome.end, "closed");
}

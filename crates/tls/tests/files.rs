//! Handshakes with settings from files, before and after the files change.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::ServerName;
use testkit::certs::{Authority, Identity, IdentityFiles};
use testkit::tempdir::TempDir;
use tls::{ClientAuth, ClientTls, ClientTlsParams, Metrics, ServerTls, ServerTlsParams, TlsError};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

const NAME: &str = "server.example.com";

/// Two ends with certificates of one authority, each trusting `ca.crt`.
struct Place {
    dir: TempDir,
    server: IdentityFiles,
    client: IdentityFiles,
    ca: PathBuf,
}

impl Place {
    fn new(authority: &Authority) -> Self {
        let dir = TempDir::new("tls").unwrap();
        let server = server_identity(authority)
            .write(dir.path(), "server")
            .unwrap();
        let client = client_identity(authority)
            .write(dir.path(), "client")
            .unwrap();
        let ca = authority.write(&dir.join("ca.crt")).unwrap();
        Self {
            dir,
            server,
            client,
            ca,
        }
    }

    fn server_params(&self, client_auth: ClientAuth) -> ServerTlsParams {
        ServerTlsParams {
            cert: self.server.cert.clone(),
            key: self.server.key.clone(),
            client_ca: Some(self.ca.clone()),
            client_auth,
            alpn: vec![b"h2".to_vec()],
        }
    }

    fn client_params(&self) -> ClientTlsParams {
        ClientTlsParams {
            ca: self.ca.clone(),
            cert: Some(self.client.cert.clone()),
            key: Some(self.client.key.clone()),
            alpn: vec![b"h2".to_vec()],
        }
    }

    fn trust(&self, authorities: &[&Authority]) {
        let bundle: String = authorities.iter().map(|one| one.pem()).collect();
        self.dir.replace("ca.crt", bundle).unwrap();
    }
}

fn server_identity(authority: &Authority) -> Identity {
    authority.server(&[NAME]).unwrap()
}

fn client_identity(authority: &Authority) -> Identity {
    authority.client("client", &[], &["spiffe://c"]).unwrap()
}

/// Shakes hands in memory and returns what the client then receives of the server's greeting,
/// together with the protocol that was agreed on.
async fn shake(server: &ServerTls, client: &ClientTls) -> Result<String, String> {
    let (near, far) = tokio::io::duplex(64 * 1024);
    let acceptor = TlsAcceptor::from(server.config());
    let serving = async move {
        let mut stream = acceptor.accept(far).await?;
        stream.write_all(b"hello").await?;
        stream.shutdown().await
    };
    let (served, greeted) = tokio::join!(serving, greet(near, client));
    served.map_err(|error| format!("server: {error}"))?;
    greeted.map_err(|error| format!("client: {error}"))
}

async fn greet(near: DuplexStream, client: &ClientTls) -> std::io::Result<String> {
    let name = ServerName::try_from(NAME).unwrap();
    let connector = TlsConnector::from(client.config());
    let mut stream: TlsStream<_> = connector.connect(name, near).await?;
    let mut greeting = String::new();
    stream.read_to_string(&mut greeting).await?;
    let alpn = stream.get_ref().1.alpn_protocol().unwrap_or_default();
    Ok(format!("{greeting} {}", String::from_utf8_lossy(alpn)))
}

#[tokio::test]
async fn both_ends_verify_each_other() {
    let place = Place::new(&Authority::new("a").unwrap());
    let server = ServerTls::load(place.server_params(ClientAuth::Required)).unwrap();
    let client = ClientTls::load(place.client_params()).unwrap();
    assert_eq!(shake(&server, &client).await.unwrap(), "hello h2");
}

#[tokio::test]
async fn client_certificate_may_be_optional() {
    let place = Place::new(&Authority::new("a").unwrap());
    let anonymous = ClientTls::load(ClientTlsParams {
        cert: None,
        key: None,
        ..place.client_params()
    })
    .unwrap();
    for (client_auth, served) in [(ClientAuth::None, true), (ClientAuth::Required, false)] {
        let server = ServerTls::load(place.server_params(client_auth)).unwrap();
        let shaken = shake(&server, &anonymous).await;
        assert_eq!(shaken.is_ok(), served, "{client_auth:?}: {shaken:?}");
    }
}

#[tokio::test]
async fn certificate_of_other_authority_is_refused() {
    let place = Place::new(&Authority::new("a").unwrap());
    let stranger = client_identity(&Authority::new("b").unwrap());
    let files = stranger.write(place.dir.path(), "stranger").unwrap();
    let client = ClientTls::load(ClientTlsParams {
        cert: Some(files.cert),
        key: Some(files.key),
        ..place.client_params()
    })
    .unwrap();
    let server = ServerTls::load(place.server_params(ClientAuth::Required)).unwrap();
    shake(&server, &client).await.unwrap_err();
}

/// The rotation of an authority in three steps, as certificates are rotated in a running cluster:
/// trust both, exchange the certificates one end after the other, trust the new one alone.
#[tokio::test]
async fn authority_rotation_keeps_trust_throughout() {
    let (old, new) = (
        Authority::new("old").unwrap(),
        Authority::new("new").unwrap(),
    );
    let place = Place::new(&old);
    let server = ServerTls::load(place.server_params(ClientAuth::Required)).unwrap();
    let client = ClientTls::load(place.client_params()).unwrap();
    let works = async |step: &str| {
        let shaken = shake(&server, &client).await;
        assert!(shaken.is_ok(), "{step}: {shaken:?}");
    };
    works("at first").await;

    place.trust(&[&old, &new]);
    assert!(server.reload().unwrap());
    works("server trusts both").await;
    assert!(client.reload().unwrap());
    works("client trusts both").await;

    server_identity(&new)
        .write(place.dir.path(), "server")
        .unwrap();
    assert!(server.reload().unwrap());
    works("new server certificate").await;
    client_identity(&new)
        .write(place.dir.path(), "client")
        .unwrap();
    assert!(client.reload().unwrap());
    works("new client certificate").await;

    place.trust(&[&new]);
    assert!(server.reload().unwrap() && client.reload().unwrap());
    works("new alone").await;
    assert!(!server.reload().unwrap() && !client.reload().unwrap());

    // A client with a certificate of the old one is refused, resumption or not.
    client_identity(&old)
        .write(place.dir.path(), "client")
        .unwrap();
    assert!(client.reload().unwrap());
    shake(&server, &client).await.unwrap_err();
}

#[tokio::test]
async fn broken_files_keep_previous_settings() {
    let authority = Authority::new("a").unwrap();
    let place = Place::new(&authority);
    let server = ServerTls::load(place.server_params(ClientAuth::Required)).unwrap();
    let client = ClientTls::load(place.client_params()).unwrap();
    let before = Arc::as_ptr(&server.config());

    place.dir.replace("server.crt", "").unwrap();
    let error = server.reload().unwrap_err();
    assert!(matches!(error, TlsError::NoCertificate { .. }), "{error}");
    std::fs::remove_file(&place.server.cert).unwrap();
    let error = server.reload().unwrap_err();
    assert!(matches!(error, TlsError::Read { .. }), "{error}");
    assert!(error.to_string().contains("server.crt"), "{error}");
    assert_eq!(Arc::as_ptr(&server.config()), before);
    shake(&server, &client).await.unwrap();

    server_identity(&authority)
        .write(place.dir.path(), "server")
        .unwrap();
    assert!(server.reload().unwrap());
    shake(&server, &client).await.unwrap();
}

#[test]
fn each_fault_names_its_file() {
    let place = Place::new(&Authority::new("a").unwrap());
    let other = server_identity(&Authority::new("b").unwrap());
    let load = || ServerTls::load(place.server_params(ClientAuth::Required)).map(|_| ());
    let client_ca = |path: Option<&Path>| {
        let mut params = place.server_params(ClientAuth::Required);
        params.client_ca = path.map(Path::to_owned);
        ServerTls::load(params).map(|_| ())
    };
    let fault = |result: Result<(), TlsError>, file: &str| {
        let error = result.unwrap_err();
        assert!(error.to_string().contains(file), "{error}");
        error
    };
    load().unwrap();

    let error = fault(client_ca(Some(&place.dir.join("none.crt"))), "none.crt");
    assert!(matches!(error, TlsError::Read { .. }));
    let error = fault(client_ca(Some(&place.server.key)), "server.key");
    assert!(matches!(error, TlsError::NoCertificate { .. }));
    let error = fault(client_ca(None), "CA bundle");
    assert!(matches!(error, TlsError::NoClientAuthority));

    let key = std::fs::read_to_string(&place.server.key).unwrap();
    place.dir.replace("server.key", &other.key_pem).unwrap();
    let error = fault(load(), "server.key");
    assert!(matches!(error, TlsError::KeyMismatch { .. }));
    place.dir.replace("server.key", &other.cert_pem).unwrap();
    let error = fault(load(), "server.key");
    assert!(matches!(error, TlsError::NoKey { .. }));
    place
        .dir
        .replace("server.key", key.replace("-----END", "--"))
        .unwrap();
    let error = fault(load(), "server.key");
    assert!(matches!(error, TlsError::Pem { .. }), "{error:?}");
    place
        .dir
        .replace("server.key", vec![b'x'; 2 << 20])
        .unwrap();
    let error = fault(load(), "server.key");
    assert!(matches!(error, TlsError::TooLong { .. }));
    place.dir.replace("server.key", key).unwrap();
    load().unwrap();

    let no_cert = "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n";
    place.dir.replace("ca.crt", no_cert).unwrap();
    let error = fault(load(), "ca.crt");
    assert!(matches!(error, TlsError::Authority(_, 1, _)));
}

/// A key whose line breaks were lost is all on the line at fault.
#[test]
fn error_shows_nothing_of_a_key() {
    let place = Place::new(&Authority::new("a").unwrap());
    let key = std::fs::read_to_string(&place.server.key).unwrap();
    let one_line = key.replace('\n', "");
    place.dir.replace("server.key", &one_line).unwrap();
    let error = ServerTls::load(place.server_params(ClientAuth::Required)).unwrap_err();
    assert!(matches!(error, TlsError::Pem { .. }), "{error}");
    let shown = format!("{} {error:?}", telemetry::chain(&error));
    let bytes = format!("{:?}", &one_line.as_bytes()[40..60]);
    assert!(!shown.contains(bytes.trim_matches(['[', ']'])), "{shown}");
}

#[test]
fn client_needs_certificate_and_key() {
    let place = Place::new(&Authority::new("a").unwrap());
    let half = ClientTlsParams {
        key: None,
        ..place.client_params()
    };
    let error = ClientTls::load(half).unwrap_err();
    assert!(error.to_string().contains("client.crt"), "{error}");
    let half = ClientTlsParams {
        cert: None,
        ..place.client_params()
    };
    assert!(matches!(
        ClientTls::load(half),
        Err(TlsError::Incomplete(..))
    ));
}

#[tokio::test]
async fn watch_applies_changes_and_counts_broken_files() {
    let authority = Authority::new("a").unwrap();
    let place = Place::new(&authority);
    let registry = telemetry::Registry::new();
    let server = ServerTls::load(place.server_params(ClientAuth::Required)).unwrap();
    server.count_in(&Metrics::new(&registry), "xds");
    let value = |series: &str| {
        let text = registry.encode(telemetry::metrics::Exposition::Text);
        let line = text.lines().find(|line| line.starts_with(series)).unwrap();
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    let count = |result: &str| {
        value(&format!(
            r#"rhizome_tls_reloads_total{{purpose="xds",result="{result}"}}"#
        ))
    };
    let refused = || value(r#"rhizome_tls_files_refused{purpose="xds"}"#);
    let until = async |result: &str| {
        while count(result) == 0.0 {
            tokio::task::yield_now().await;
        }
    };
    let watching = async {
        server.watch().await;
        unreachable!("it never ends")
    };
    let changing = async {
        place.dir.replace("server.crt", "garbage").unwrap();
        until("refused").await;
        // One refusal, and it lasts.
        while refused() == 0.0 {
            tokio::task::yield_now().await;
        }
        let fresh = server_identity(&authority);
        place.dir.replace("server.key", &fresh.key_pem).unwrap();
        place.dir.replace("server.crt", &fresh.cert_pem).unwrap();
        until("taken").await;
        while refused() > 0.0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        () = watching => {}
        () = changing => {}
    }
    let client = ClientTls::load(place.client_params()).unwrap();
    shake(&server, &client).await.unwrap();

    place.dir.replace("server.crt", "garbage").unwrap();
    server.reload().unwrap_err();
    assert_eq!(refused(), 1.0);
    drop(server);
    assert_eq!(refused(), 0.0, "what is gone is not refused");
}

//! What outlives its handshake: sessions that are taken up again, and trust in authorities.

use std::io::{Read, Write};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use testkit::certs::{self, Authority, Identity};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::{
    ClientSessionMemoryCache, ClientSessionStore, Resumption, Tls12ClientSessionValue,
    Tls13ClientSessionValue,
};
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, ClientConnection, NamedGroup};

use super::recorder::Recorder;
use super::{NAME, World, until};
use crate::support::LIMIT;

/// Offers a session to whatever server, and not to its own alone.
#[derive(Debug)]
struct Anywhere(ClientSessionMemoryCache);

fn any() -> ServerName<'static> {
    ServerName::try_from("any.test").unwrap()
}

impl ClientSessionStore for Anywhere {
    fn set_kx_hint(&self, _: ServerName<'static>, group: NamedGroup) {
        self.0.set_kx_hint(any(), group);
    }

    fn kx_hint(&self, _: &ServerName<'_>) -> Option<NamedGroup> {
        self.0.kx_hint(&any())
    }

    fn set_tls12_session(&self, _: ServerName<'static>, value: Tls12ClientSessionValue) {
        self.0.set_tls12_session(any(), value);
    }

    fn tls12_session(&self, _: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        self.0.tls12_session(&any())
    }

    fn remove_tls12_session(&self, _: &ServerName<'static>) {
        self.0.remove_tls12_session(&any());
    }

    fn insert_tls13_ticket(&self, _: ServerName<'static>, value: Tls13ClientSessionValue) {
        self.0.insert_tls13_ticket(any(), value);
    }

    fn take_tls13_ticket(&self, _: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.0.take_tls13_ticket(&any())
    }
}

fn config(world: &World, identity: &Identity) -> Arc<ClientConfig> {
    let own =
        certs::mutual_client_config(world.secrets.serving.pem(), Some(identity), &["http/1.1"]);
    let mut own = ClientConfig::clone(&own.unwrap());
    own.resumption = Resumption::store(Arc::new(Anywhere(ClientSessionMemoryCache::new(8))));
    Arc::new(own)
}

/// Asks once, and returns the answer's first line, or none if the handshake was refused.
async fn ask(world: &World, config: &Arc<ClientConfig>, name: &'static str) -> String {
    let stream = TcpStream::connect(world.gateway.addr("tls")).await.unwrap();
    let connecting = TlsConnector::from(Arc::clone(config));
    let connecting = connecting.connect(ServerName::try_from(name).unwrap(), stream);
    let Ok(mut stream) = timeout(LIMIT, connecting).await.unwrap() else {
        return String::new();
    };
    let request = format!("GET /a HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n");
    let mut answer = Vec::new();
    let exchanged = async {
        let _ = stream.write_all(request.as_bytes()).await;
        let _ = stream.read_to_end(&mut answer).await;
    };
    timeout(LIMIT, exchanged).await.unwrap();
    let text = String::from_utf8_lossy(&answer);
    text.lines().next().unwrap_or_default().to_owned()
}

fn resumed(world: &World) -> f64 {
    let labels = [("listener", "tls"), ("outcome", "resumed")];
    world.gateway.value("rhizome_tls_handshakes_total", &labels)
}

const OK: &str = "HTTP/1.1 200 OK";

#[tokio::test]
async fn session_resumes_by_its_name_and_route_alone() {
    let others = Authority::new("others").unwrap();
    let (world, recorder) = Recorder::start(&["h2"]);
    let path = world.gateway.dir.join("others.crt");
    others.write(&path).unwrap();
    let clients = &world.secrets.clients;
    let identity = clients.client("jane", &["devs"], &[]).unwrap();
    let first = config(&world, &identity);
    assert_eq!(ask(&world, &first, NAME).await, OK);
    assert_eq!(ask(&world, &first, NAME).await, OK);
    assert_eq!(resumed(&world), 1.0);
    // RFC 6066 section 3: not by another name, though it is of the same route.
    assert_eq!(ask(&world, &first, "b.api.test").await, OK);
    assert_eq!(resumed(&world), 1.0);
    let second = config(&world, &identity);
    assert_eq!(ask(&world, &second, NAME).await, OK);
    assert_eq!(ask(&world, &second, NAME).await, OK);
    assert_eq!(resumed(&world), 2.0);
    // Who it is was kept with the session.
    let seen = recorder.take();
    assert_eq!(seen.len(), 5);
    for own in seen {
        assert_eq!(
            own.identity[1..],
            ["x-remote-group: devs", "x-remote-user: jane"]
        );
    }
    // Nor where the name has a route that trusts other authorities.
    let of_clients = "clientAuthorities: clients.crt";
    let routes = world.routes();
    assert!(routes.contains(of_clients));
    world.change(&routes.replace(of_clients, "clientAuthorities: others.crt"));
    assert_eq!(ask(&world, &second, NAME).await, "");
    assert_eq!(resumed(&world), 2.0);
    assert!(recorder.take().is_empty());
}

#[tokio::test]
async fn session_ends_with_the_authorities_it_began_under() {
    let (world, recorder) = Recorder::start(&["h2"]);
    let identity = world.secrets.clients.client("jane", &[], &[]).unwrap();
    let config = config(&world, &identity);
    assert_eq!(ask(&world, &config, NAME).await, OK);
    let others = Authority::new("others").unwrap();
    let path = world.gateway.dir.join("clients.crt");
    others.write(&path).unwrap();
    let ended = async {
        while ask(&world, &config, NAME).await == OK {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(LIMIT, ended).await.unwrap();
    let before = resumed(&world);
    assert!(before >= 1.0, "{before}");
    recorder.take();
    for _ in 0..3 {
        assert_eq!(ask(&world, &config, NAME).await, "");
    }
    assert_eq!(resumed(&world), before);
    assert!(recorder.take().is_empty());
}

/// As an API server does, and path validation does not.
#[tokio::test]
async fn authority_that_has_ended_vouches_for_no_client() {
    let expired = Authority::expired("expired").unwrap();
    let other = Authority::new("other").unwrap();
    for beside in [false, true] {
        let (world, recorder) = Recorder::start_with(&["h2"], |dir| {
            let beside = if beside { other.pem() } else { "" };
            let all = format!("{}{beside}", expired.pem());
            dir.write("clients.crt", all).unwrap();
        });
        let of_expired = expired.client("jane", &[], &[]).unwrap();
        let answer = ask(&world, &config(&world, &of_expired), NAME).await;
        assert_eq!(answer, "HTTP/1.1 401 Unauthorized", "{beside}");
        assert!(recorder.take().is_empty());
        if beside {
            let of_other = other.client("jane", &[], &[]).unwrap();
            assert_eq!(ask(&world, &config(&world, &of_other), NAME).await, OK);
            assert_eq!(recorder.take()[0].identity[1], "x-remote-user: jane");
        }
    }
}

/// A ticket carries the chain, and with it an authority that outlives the client's own certificate.
#[tokio::test]
async fn session_outlives_no_certificate() {
    let (world, recorder) = Recorder::start(&["h2"]);
    let clients = &world.secrets.clients;
    let mut identity = clients
        .ending_client("jane", Duration::from_secs(4))
        .unwrap();
    identity.cert_pem += clients.pem();
    let config = config(&world, &identity);
    assert_eq!(ask(&world, &config, NAME).await, OK);
    let ended = async {
        loop {
            let answer = ask(&world, &config, NAME).await;
            if answer != OK {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let answer = timeout(LIMIT, ended).await.unwrap();
    assert_eq!(answer, "HTTP/1.1 401 Unauthorized");
    assert!(resumed(&world) >= 1.0);
    recorder.take();
}

/// Asks once, over a connection whose handshake goes on at `at` with the last record of its client; returns the
/// answer's first line, or none if the handshake was refused.
async fn ask_slowly(world: &World, identity: &Identity, at: SystemTime) -> String {
    let mut config = ClientConfig::clone(&config(world, identity));
    // Several records, so that the last has nothing of the certificate.
    config.max_fragment_size = Some(64);
    let name = ServerName::try_from(NAME).unwrap();
    let mut tls = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut stream = TcpStream::connect(world.gateway.addr("tls")).await.unwrap();
    let mut held = sent(&mut tls);
    while tls.is_handshaking() {
        stream.write_all(&held).await.unwrap();
        let mut bytes = Vec::new();
        stream.read_buf(&mut bytes).await.unwrap();
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            tls.read_tls(&mut rest).unwrap();
            tls.process_new_packets().unwrap();
        }
        held = sent(&mut tls);
    }
    let (mut last, mut next) = (0, 0);
    while next < held.len() {
        let len = u16::from_be_bytes([held[next + 3], held[next + 4]]);
        (last, next) = (next, next + 5 + usize::from(len));
    }
    stream.write_all(&held[..last]).await.unwrap();
    until("the time", || SystemTime::now() > at).await;
    let request = format!("GET /a HTTP/1.1\r\nHost: {NAME}\r\nConnection: close\r\n\r\n");
    tls.writer().write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    let exchanged = async {
        let _ = stream
            .write_all(&[&held[last..], &sent(&mut tls)].concat())
            .await;
        let _ = stream.read_to_end(&mut answer).await;
    };
    timeout(LIMIT, exchanged).await.unwrap();
    let (mut rest, mut text) = (&answer[..], Vec::new());
    while !rest.is_empty() && tls.read_tls(&mut rest).is_ok() {
        if tls.process_new_packets().is_err() {
            return String::new();
        }
        let _ = tls.reader().read_to_end(&mut text);
    }
    let text = String::from_utf8_lossy(&text);
    text.lines().next().unwrap_or_default().to_owned()
}

/// Returns what a client has to send now.
fn sent(tls: &mut ClientConnection) -> Vec<u8> {
    let mut bytes = Vec::new();
    while tls.wants_write() {
        tls.write_tls(&mut bytes).unwrap();
    }
    bytes
}

/// Beside an authority that outlives it.
#[tokio::test]
async fn certificate_that_ends_in_its_handshake_is_refused() {
    let (world, recorder) = Recorder::start(&["h2"]);
    let clients = &world.secrets.clients;
    let asked = async {
        loop {
            let after = Duration::from_secs(4);
            // Valid through a whole second.
            let ended = SystemTime::now() + after + Duration::from_secs(1);
            let mut identity = clients.ending_client("jane", after).unwrap();
            identity.cert_pem += clients.pem();
            let answer = ask_slowly(&world, &identity, ended).await;
            // On a busy machine it may come too late even for the handshake.
            if !answer.is_empty() {
                return answer;
            }
        }
    };
    let answer = timeout(LIMIT, asked).await.unwrap();
    assert_eq!(answer, "HTTP/1.1 401 Unauthorized");
    assert!(recorder.take().is_empty());
}

//! One socket, with or without TLS, and the requests on it.

use std::fmt::Debug;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use anyhow::{Context, Error, Result, anyhow};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};

use super::response::{Body, Response, Watch};
use super::target::{Proxy, RefusedByProxy, Target, Tls};
use crate::{certs, proxy_header};

/// An open connection; requests follow each other on it (keep-alive).
#[derive(Debug)]
pub struct Connection {
    stream: BufReader<Stream>,
    host: String,
    headers: Vec<(String, String)>,
}

impl Connection {
    /// Dials, says what [`Proxy`] asks for, and finishes the TLS handshake.
    ///
    /// Fails when a step fails; the text names it. A CONNECT answered otherwise than by 2xx carries
    /// [`RefusedByProxy`].
    pub fn open(target: &Target) -> Result<Self> {
        let addr = target.addr;
        let tcp = TcpStream::connect_timeout(&addr, target.timeout)
            .with_context(|| format!("connecting to {addr}"))?;
        tcp.set_nodelay(true).context("setting TCP_NODELAY")?;
        tcp.set_read_timeout(Some(target.timeout))
            .context("limiting reads")?;
        tcp.set_write_timeout(Some(target.timeout))
            .context("limiting writes")?;
        let stream = introduce(tcp, &target.proxy)
            .with_context(|| format!("introducing ourselves to {addr}"))?;
        let name = target.tls.as_ref().and_then(|tls| tls.server_name.clone());
        let stream = match &target.tls {
            Some(tls) => handshake(stream, target, tls)?,
            None => stream,
        };
        Ok(Self {
            stream: BufReader::new(stream),
            host: name.unwrap_or_else(|| addr.to_string()),
            headers: target.headers.clone(),
        })
    }

    pub fn get(&mut self, path: &str) -> Result<Response> {
        self.request("GET", path, None)
    }

    /// Sends a request with an optional JSON body, a merge patch if the method is PATCH, and reads
    /// the whole answer.
    pub fn request(&mut self, method: &str, path: &str, body: Option<&str>) -> Result<Response> {
        let head = self.ask(method, path, body)?;
        head.read_body(&mut self.stream)
            .with_context(|| format!("reading the body of {method} {path}"))
    }

    /// Asks for `path` and reads the answer as it comes: a Kubernetes watch.
    pub fn watch(mut self, path: &str) -> Result<Watch> {
        let head = self.ask("GET", path, None)?;
        if head.status != 200 || !head.is_chunked() {
            return Err(self.refused(head, &format!("no watch at {path}")));
        }
        Ok(Watch::new(self.stream))
    }

    /// Asks for `path` and leaves the body, which must have a length, to be read in pieces.
    pub fn body(mut self, path: &str) -> Result<Body> {
        let head = self.ask("GET", path, None)?;
        match head.header("content-length").map(str::parse) {
            Some(Ok(length)) if head.status == 200 => Ok(Body::new(self.stream, length)),
            _ => Err(self.refused(head, &format!("no body at {path}"))),
        }
    }

    /// Asks at `path` to speak `protocol` from there on, whatever that is.
    pub fn upgrade(mut self, path: &str, protocol: &str) -> Result<Upgraded> {
        let pairs = [("Connection", "Upgrade"), ("Upgrade", protocol)];
        let owned = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
        self.headers.extend(owned);
        let head = self.ask("GET", path, None)?;
        if head.status != 101 {
            return Err(self.refused(head, &format!("no upgrade at {path}")));
        }
        Ok(Upgraded(self.stream))
    }

    pub fn raw(self) -> Upgraded {
        Upgraded(self.stream)
    }

    /// Reads the body of an answer that was not hoped for.
    fn refused(mut self, head: Response, what: &str) -> Error {
        match head.read_body(&mut self.stream) {
            Ok(answer) => anyhow!("{what}: status {}: {}", answer.status, answer.text()),
            Err(error) => error.context(what.to_owned()),
        }
    }

    fn ask(&mut self, method: &str, path: &str, body: Option<&str>) -> Result<Response> {
        let mut text = format!("{method} {path} HTTP/1.1\r\nHost: {}\r\n", self.host);
        for (name, value) in &self.headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        if let Some(body) = body {
            let len = body.len();
            // A Kubernetes API server tells kinds of patches apart by this (RFC 7386).
            let kind = match method {
                "PATCH" => "application/merge-patch+json",
                _ => "application/json",
            };
            text.push_str(&format!(
                "Content-Type: {kind}\r\nContent-Length: {len}\r\n"
            ));
        }
        text.push_str("\r\n");
        text.push_str(body.unwrap_or_default());
        let stream = self.stream.get_mut();
        let sent = stream.write_all(text.as_bytes());
        sent.and_then(|()| stream.flush())
            .with_context(|| format!("sending {method} {path}"))?;
        Response::read_head(&mut self.stream)
            .with_context(|| format!("reading the answer to {method} {path}"))
    }
}

#[derive(Debug)]
pub struct Upgraded(BufReader<Stream>);

impl Upgraded {
    /// Sends `bytes` and waits for as many in return.
    pub fn exchange(&mut self, bytes: &[u8]) -> Result<Vec<u8>> {
        self.0.get_mut().write_all(bytes).context("sending")?;
        self.0.get_mut().flush().context("sending")?;
        let mut heard = vec![0; bytes.len()];
        self.0.read_exact(&mut heard).context("receiving")?;
        Ok(heard)
    }
}

/// Says what comes before TLS, and waits for the answer where there is one.
fn introduce(mut tcp: TcpStream, proxy: &Proxy) -> Result<Stream> {
    match proxy {
        Proxy::Direct => {}
        Proxy::V1 { src, dst } => tcp
            .write_all(&proxy_header::v1(*src, *dst))
            .context("sending a PROXY header")?,
        Proxy::V2 { src, dst } => tcp
            .write_all(&proxy_header::v2(*src, *dst, &[]))
            .context("sending a PROXY header")?,
        Proxy::Connect { authority, headers } => connect(&mut tcp, authority, headers)?,
        Proxy::ConnectTls {
            authority,
            server_name,
            authority_pem,
            identity,
        } => {
            let config = certs::mutual_client_config(authority_pem, Some(identity), &[])?;
            let name = ServerName::try_from(server_name.clone())
                .with_context(|| format!("reading the proxy's name {server_name}"))?;
            let mut stream = shake_hands(Box::new(tcp), config, name)?;
            connect(&mut stream, authority, &[])?;
            return Ok(stream);
        }
    }
    Ok(Box::new(tcp))
}

fn connect(
    stream: &mut (impl Read + Write),
    authority: &str,
    headers: &[(String, String)],
) -> Result<()> {
    let mut text = format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n");
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text.push_str("\r\n");
    let sent = stream.write_all(text.as_bytes());
    let sent = sent.and_then(|()| stream.flush());
    sent.context("sending CONNECT")?;
    // One byte at a time: what follows the head is not ours to take.
    let head = Response::read_head(&mut BufReader::with_capacity(1, stream));
    match head.context("reading the answer")?.status {
        200..300 => Ok(()),
        status => Err(RefusedByProxy { status }.into()),
    }
}

fn handshake(stream: Stream, target: &Target, tls: &Tls) -> Result<Stream> {
    let name = match (&tls.server_name, &target.proxy) {
        (Some(name), _) => ServerName::try_from(name.clone())
            .with_context(|| format!("reading the server name {name}"))?,
        // Behind that proxy, the server is whom the CONNECT named.
        (None, Proxy::ConnectTls { authority, .. }) => {
            let addr = authority.parse::<SocketAddr>();
            let addr = addr.with_context(|| format!("reading the address {authority}"))?;
            ServerName::IpAddress(addr.ip().into())
        }
        (None, _) => ServerName::IpAddress(target.addr.ip().into()),
    };
    let config = certs::client_config(&tls.authority_pem)?;
    shake_hands(stream, config, name).with_context(|| format!("shaking hands with {}", target.addr))
}

fn shake_hands(
    stream: Stream,
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
) -> Result<Stream> {
    let session = ClientConnection::new(config, name).context("preparing TLS")?;
    let mut stream = StreamOwned::new(session, stream);
    while stream.conn.is_handshaking() {
        let moved = stream.conn.complete_io(&mut stream.sock);
        moved.context("shaking hands")?;
    }
    Ok(Box::new(stream))
}

/// The socket, seen through TLS or not, once or twice.
pub(super) type Stream = Box<dyn Socket>;

pub(super) trait Socket: Read + Write + Debug + Send + Sync {}

impl<S: Read + Write + Debug + Send + Sync> Socket for S {}

/// Reads one line without its end.
pub(super) fn read_line(stream: &mut impl BufRead) -> Result<String> {
    let mut line = Vec::new();
    let read = stream.take(MAX_HEAD_BYTES).read_until(b'\n', &mut line);
    read.context("reading a line")?;
    if line.pop() != Some(b'\n') {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof)).context("reading a line");
    }
    if line.last() == Some(&b'\r') {
        line.pop();
    }
    String::from_utf8(line).context("a line that is no text")
}

pub(super) const MAX_HEAD_BYTES: u64 = 64 * 1024;

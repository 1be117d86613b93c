//! What a client says first, by what its connection has to begin with.
//!
//! ```text
//! sni      ClientHello │ command                          all at once
//! proxy    PROXY header │ ClientHello │ command           all at once
//! connect  CONNECT head ──▶ 200 ──▶ ClientHello │ command
//! ```
//!
//! Without a proxy between there is a ClientHello and a command in all three.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testkit::client_hello::ClientHello;
use testkit::proxy_header;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::backend::Command;
use crate::profile::{Listener, Route};

#[derive(Clone, Debug)]
pub(crate) struct Opening {
    before: Vec<u8>,
    /// Whether `before` is answered before anything else may be sent.
    answered: bool,
    hello: Vec<u8>,
}

/// What is sent at once, and what is sent once that was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Words {
    pub(crate) first: Vec<u8>,
    /// After an HTTP head with status 200; `None` when everything was sent.
    pub(crate) then: Option<Vec<u8>>,
}

impl Opening {
    /// Makes them. `post_quantum` gives the ClientHello a key share of 1216 bytes.
    pub(crate) fn new(listener: Option<Listener>, route: &Route, post_quantum: bool) -> Self {
        let mut hello = ClientHello::for_name(&route.name);
        if post_quantum {
            hello.key_share_bytes = 1216;
        }
        let before = match listener {
            None | Some(Listener::Https | Listener::Sni) => Vec::new(),
            Some(Listener::Proxy) => {
                let destination = SocketAddr::from((route.destination, 443));
                proxy_header::v2(CLIENT.into(), destination, &[])
            }
            Some(Listener::Connect) => {
                let authority = format!("{}:443", route.name);
                format!(
                    "CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\
                     X-Gardener-Destination: {}\r\n\r\n",
                    route.cluster
                )
                .into_bytes()
            }
        };
        Self {
            before,
            answered: listener == Some(Listener::Connect),
            hello: hello.encode(),
        }
    }

    pub(crate) fn by_name(name: &str) -> Self {
        Self {
            before: Vec::new(),
            answered: false,
            hello: ClientHello::for_name(name).encode(),
        }
    }

    /// Returns what a canned connection says: `payload` goes behind the command.
    pub(crate) fn canned(&self, command: Command, payload: &[u8]) -> Words {
        let rest = [&self.hello, &[command.byte()][..], payload].concat();
        if self.answered {
            return Words {
                first: self.before.clone(),
                then: Some(rest),
            };
        }
        Words {
            first: [&self.before[..], &rest].concat(),
            then: None,
        }
    }

    pub(crate) fn echoing(&self, address: SocketAddr) -> Result<TcpStream> {
        let mut stream = self.canned(Command::Echo, b"!").dial(address, LIMIT)?;
        let mut byte = [0; 1];
        stream.read_exact(&mut byte).context("receiving")?;
        ensure!(byte == *b"!", "another byte came back");
        Ok(stream)
    }
}

impl Words {
    /// Connects to `address` and says them, on a socket that blocks, for at most `limit` a step.
    pub(crate) fn dial(&self, address: SocketAddr, limit: Duration) -> Result<TcpStream> {
        let what = || format!("opening a connection to {address}");
        let mut stream = TcpStream::connect_timeout(&address, limit).with_context(what)?;
        stream.set_nodelay(true).with_context(what)?;
        stream.set_read_timeout(Some(limit)).with_context(what)?;
        stream.set_write_timeout(Some(limit)).with_context(what)?;
        stream.write_all(&self.first).with_context(what)?;
        if let Some(then) = &self.then {
            let mut head = Vec::new();
            let mut bytes = [0; 4096];
            while !is_accepted(&head).with_context(what)? {
                let count = stream.read(&mut bytes).with_context(what)?;
                ensure!(count > 0, "closed in the middle of an answer");
                head.extend_from_slice(&bytes[..count]);
            }
            stream.write_all(then).with_context(what)?;
        }
        Ok(stream)
    }

    pub(super) async fn say(&self, stream: &mut tokio::net::TcpStream) -> Result<()> {
        stream.write_all(&self.first).await?;
        if let Some(then) = &self.then {
            let mut head = Vec::new();
            while !is_accepted(&head)? {
                let count = stream.read_buf(&mut head).await?;
                ensure!(count > 0, "closed in the middle of an answer");
            }
            stream.write_all(then).await?;
        }
        Ok(())
    }
}

/// Tells whether the answer to a CONNECT has come whole; nothing can follow it before the client says
/// more.
fn is_accepted(head: &[u8]) -> Result<bool> {
    if let Some((status, _)) = head.split_first_chunk::<STATUS>() {
        let text = String::from_utf8_lossy(status);
        ensure!(text.ends_with(" 200"), "answered {text:?}");
    }
    Ok(head.ends_with(b"\r\n\r\n"))
}

const STATUS: usize = 12;

/// Who the PROXY header says the client is: an address for documentation.
const CLIENT: (Ipv4Addr, u16) = (Ipv4Addr::new(192, 0, 2, 1), 40_000);

/// Far longer than any step takes that ends well.
pub(crate) const LIMIT: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    fn words(listener: Option<Listener>) -> Words {
        let backend = SocketAddr::from(([127, 0, 0, 1], 443));
        let opening = Opening::new(listener, &Route::numbered(7, backend), false);
        opening.canned(Command::Echo, b"!")
    }

    #[test]
    fn each_listener_gets_its_own_route_syntax() {
        let direct = words(None);
        assert!(direct.first.starts_with(&[22, 3, 1]) && direct.first.ends_with(b"E!"));
        assert_eq!(direct, words(Some(Listener::Sni)));
        let length = direct.first.len();
        assert!((200..300).contains(&length), "{length}");
        let proxy = words(Some(Listener::Proxy)).first;
        assert!(proxy.starts_with(b"\r\n\r\n\0\r\nQUIT\n\x21\x11") && proxy.ends_with(b"E!"));
        assert_eq!(proxy[20..24], [10, 0, 0, 7]);
        let connect = words(Some(Listener::Connect));
        let head = String::from_utf8(connect.first).unwrap();
        assert!(head.starts_with("CONNECT api.shoot7."), "{head}");
        assert!(head.ends_with("shoot7.svc.cluster.local\r\n\r\n"), "{head}");
        assert_eq!(connect.then, Some(direct.first));
    }

    #[test]
    fn split_answer_ends_at_empty_line() {
        let head = b"HTTP/1.1 200 OK\r\nserver: x\r\n\r\n";
        for cut in 0..head.len() {
            assert!(!is_accepted(&head[..cut]).unwrap(), "cut at {cut}");
        }
        assert!(is_accepted(head).unwrap());
        assert!(is_accepted(b"HTTP/1.1 404 Not Found\r\n").is_err());
    }
}

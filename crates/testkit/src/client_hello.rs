//! Builds well-formed ClientHello messages by parameters (RFC 8446 section 4.1.2).
//!
//! Apart from the parser under test. The keys are not real: no handshake is finished.

/// What the message shall carry. The default has neither a server name nor ALPN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientHello {
    /// The `host_name` of the `server_name` extension (RFC 6066 section 3); `None` leaves it out.
    pub server_name: Option<String>,
    /// Protocols of the ALPN extension (RFC 7301); empty leaves it out.
    pub alpn: Vec<String>,
    /// Bytes of the key share: 32 is X25519, 1216 is X25519MLKEM768, more makes a giant.
    pub key_share_bytes: u16,
    /// The most bytes of the message in one TLS record, 1..=16384.
    pub record_bytes: usize,
    /// Puts `server_name` behind the key share, so that it ends the message.
    pub server_name_last: bool,
}

impl Default for ClientHello {
    fn default() -> Self {
        Self {
            server_name: None,
            alpn: Vec::new(),
            key_share_bytes: 32,
            record_bytes: 16_384,
            server_name_last: false,
        }
    }
}

impl ClientHello {
    /// Returns the usual message for `server_name`, offering `h2` and `http/1.1`.
    pub fn for_name(server_name: &str) -> Self {
        Self {
            server_name: Some(server_name.to_owned()),
            alpn: vec!["h2".to_owned(), "http/1.1".to_owned()],
            ..Self::default()
        }
    }

    /// Returns the bytes on the wire: one handshake message in as many records as it takes.
    pub fn encode(&self) -> Vec<u8> {
        let message = self.message();
        let fragments = message.chunks(self.record_bytes.clamp(1, 16_384));
        fragments.flat_map(record).collect()
    }

    /// Returns the handshake message without records: type, 3 bytes of length, body.
    pub fn message(&self) -> Vec<u8> {
        let mut body = vec![0x03, 0x03];
        body.extend([0x5a; 32]); // random
        body.extend(vector8(&[0xa5; 32])); // session id
        body.extend(vector16(&[0x13, 0x01, 0x13, 0x02, 0xc0, 0x2f])); // cipher suites
        body.extend(vector8(&[0])); // no compression
        body.extend(vector16(&self.extensions()));
        let mut message = vec![1];
        message.extend(&u32::try_from(body.len()).unwrap_or(u32::MAX).to_be_bytes()[1..]);
        message.extend(body);
        message
    }

    fn extensions(&self) -> Vec<u8> {
        let name = self.server_name.as_ref().map(|name| {
            let mut entry = vec![0]; // host_name
            entry.extend(vector16(name.as_bytes()));
            extension(0, &vector16(&entry))
        });
        let name = name.unwrap_or_default();
        let mut all = Vec::new();
        if !self.server_name_last {
            all.extend(&name);
        }
        all.extend(extension(43, &[2, 0x03, 0x04])); // supported_versions: TLS 1.3
        all.extend(extension(10, &[0, 2, 0x00, 0x1d])); // supported_groups: x25519
        all.extend(extension(13, &[0, 4, 0x04, 0x03, 0x08, 0x04])); // signature_algorithms
        if !self.alpn.is_empty() {
            let names = self.alpn.iter().map(|name| vector8(name.as_bytes()));
            let names = names.collect::<Vec<_>>().concat();
            all.extend(extension(16, &vector16(&names)));
        }
        let mut share = vec![0x00, 0x1d];
        share.extend(vector16(&vec![0x42; usize::from(self.key_share_bytes)]));
        all.extend(extension(51, &vector16(&share)));
        if self.server_name_last {
            all.extend(&name);
        }
        all
    }
}

/// Wraps a fragment into a handshake record (RFC 8446 section 5.1).
fn record(fragment: &[u8]) -> Vec<u8> {
    [&[22_u8, 0x03, 0x01][..], &vector16(fragment)].concat()
}

fn extension(kind: u16, data: &[u8]) -> Vec<u8> {
    [&kind.to_be_bytes()[..], &vector16(data)].concat()
}

fn vector8(data: &[u8]) -> Vec<u8> {
    let mut vector = vec![u8::try_from(data.len()).unwrap_or(u8::MAX)];
    vector.extend(data);
    vector
}

fn vector16(data: &[u8]) -> Vec<u8> {
    let length = u16::try_from(data.len()).unwrap_or(u16::MAX);
    [&length.to_be_bytes()[..], data].concat()
}

#[cfg(test)]
mod tests {
    use rustls::server::Acceptor;

    use super::*;

    fn read_by_rustls(mut bytes: &[u8]) -> (Option<String>, Vec<String>) {
        let mut acceptor = Acceptor::default();
        loop {
            let read = acceptor.read_tls(&mut bytes).unwrap();
            assert_ne!(read, 0, "rustls wants more");
            if let Some(accepted) = acceptor.accept().map_err(|(error, _)| error).unwrap() {
                let hello = accepted.client_hello();
                let alpn = hello.alpn().into_iter().flatten();
                let alpn = alpn.map(|name| String::from_utf8_lossy(name).into_owned());
                return (hello.server_name().map(str::to_owned), alpn.collect());
            }
        }
    }

    #[test]
    fn client_hello_is_read_by_rustls() {
        let hello = ClientHello {
            key_share_bytes: 20_000,
            record_bytes: 600,
            server_name_last: true,
            ..ClientHello::for_name("api.example.com")
        };
        let (name, alpn) = read_by_rustls(&hello.encode());
        assert_eq!(name.as_deref(), Some("api.example.com"));
        assert_eq!(alpn, ["h2", "http/1.1"]);
        let bare = read_by_rustls(&ClientHello::default().encode());
        assert_eq!(bare, (None, Vec::new()));
    }
}

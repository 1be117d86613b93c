//! Builds ClientHello messages by hand, well-formed unless told otherwise.

/// RFC 8446 §4.1.2, extensions in the order given.
#[derive(Clone)]
pub(crate) struct Hello {
    pub(crate) version: u16,
    pub(crate) session_id: Vec<u8>,
    pub(crate) cipher_suites: Vec<u8>,
    pub(crate) compression: Vec<u8>,
    pub(crate) extensions: Option<Vec<(u16, Vec<u8>)>>,
}

impl Hello {
    pub(crate) fn new() -> Self {
        Self {
            version: 0x0303,
            session_id: vec![7; 32],
            cipher_suites: vec![0x13, 0x01, 0x13, 0x02],
            compression: vec![0],
            extensions: Some(vec![(43, vec![2, 3, 4])]),
        }
    }

    pub(crate) fn with(mut self, kind: u16, payload: Vec<u8>) -> Self {
        self.extensions
            .get_or_insert_default()
            .push((kind, payload));
        self
    }

    /// `server_name` with one host name.
    pub(crate) fn named(self, name: &str) -> Self {
        self.with(0, vector16(&host_name(name.as_bytes())))
    }

    /// `key_share` with one entry of `len` bytes for X25519MLKEM768.
    pub(crate) fn key_share(self, len: usize) -> Self {
        let entry = [&[0x11, 0xec][..], &vector16(&vec![0x5a; len])].concat();
        self.with(51, vector16(&entry))
    }

    pub(crate) fn alpn(self, protocols: &[&[u8]]) -> Self {
        let list: Vec<u8> = protocols.iter().flat_map(|name| vector8(name)).collect();
        self.with(16, vector16(&list))
    }

    /// The handshake message.
    pub(crate) fn message(&self) -> Vec<u8> {
        let mut body = self.version.to_be_bytes().to_vec();
        body.extend([9; 32]);
        body.extend(vector8(&self.session_id));
        body.extend(vector16(&self.cipher_suites));
        body.extend(vector8(&self.compression));
        if let Some(extensions) = &self.extensions {
            let block: Vec<u8> = extensions
                .iter()
                .flat_map(|(kind, payload)| [&kind.to_be_bytes()[..], &vector16(payload)].concat())
                .collect();
            body.extend(vector16(&block));
        }
        message(1, &body)
    }

    /// The message in one record.
    pub(crate) fn record(&self) -> Vec<u8> {
        crate::bodies::into_records(&self.message(), 1 << 14)
    }
}

/// A handshake message of the given type.
pub(crate) fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let [_, length @ ..] = u32::try_from(body.len())
        .expect("messages are small")
        .to_be_bytes();
    [&[kind][..], &length, body].concat()
}

/// An entry of a server name list.
pub(crate) fn host_name(name: &[u8]) -> Vec<u8> {
    [&[0][..], &vector16(name)].concat()
}

pub(crate) fn vector8(payload: &[u8]) -> Vec<u8> {
    [
        &[u8::try_from(payload.len()).expect("fits one byte")][..],
        payload,
    ]
    .concat()
}

pub(crate) fn vector16(payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(payload.len()).expect("fits two bytes");
    [&length.to_be_bytes()[..], payload].concat()
}

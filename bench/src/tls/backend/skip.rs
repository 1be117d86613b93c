//! Reads past a ClientHello, up to the byte that says what is wanted.

use anyhow::{Result, bail, ensure};

/// What a client wants of the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// Echo, by a thread that blocks.
    Block,
    Echo,
    Generate,
    Sink,
    /// Tell the address that the connection came to, four bytes of IPv4, then echo.
    Where,
}

impl Command {
    /// Returns the byte that stands for it.
    pub(crate) fn byte(self) -> u8 {
        match self {
            Self::Block => b'B',
            Self::Echo => b'E',
            Self::Generate => b'G',
            Self::Sink => b'S',
            Self::Where => b'W',
        }
    }

    fn read(byte: u8) -> Result<Self> {
        let all = [
            Self::Block,
            Self::Echo,
            Self::Generate,
            Self::Sink,
            Self::Where,
        ];
        match all.into_iter().find(|one| one.byte() == byte) {
            Some(command) => Ok(command),
            None => bail!("{byte:#04x} asks for nothing"),
        }
    }
}

/// How far one connection's ClientHello has been read: one TLS record, cut anywhere.
#[derive(Debug, Default)]
pub(super) struct Skip {
    head: [u8; HEAD],
    seen: usize,
}

impl Skip {
    /// Takes what came, and returns the command and how many bytes are behind it; `None` while
    /// it has not come.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Result<Option<(Command, usize)>> {
        let missing = HEAD.saturating_sub(self.seen).min(bytes.len());
        let head = self.head.iter_mut().skip(self.seen);
        head.zip(bytes.iter().take(missing))
            .for_each(|(kept, byte)| *kept = *byte);
        let before = self.seen;
        self.seen += bytes.len();
        if self.seen < HEAD {
            return Ok(None);
        }
        let [kind, _, _, high, low] = self.head;
        ensure!(kind == HANDSHAKE, "no TLS record with a handshake");
        let at = HEAD + usize::from(u16::from_be_bytes([high, low]));
        let Some(byte) = at.checked_sub(before).and_then(|at| bytes.get(at)) else {
            return Ok(None);
        };
        Ok(Some((Command::read(*byte)?, self.seen - at - 1)))
    }
}

/// Type, version and length (RFC 8446 section 5.1).
const HEAD: usize = 5;
const HANDSHAKE: u8 = 22;

#[cfg(test)]
mod tests {
    use testkit::client_hello::ClientHello;

    use super::*;

    #[test]
    fn command_is_found_wherever_hello_is_cut() {
        let mut bytes = ClientHello::for_name("a.example").encode();
        bytes.extend(b"Gxyz");
        for cut in 0..bytes.len() {
            let mut skip = Skip::default();
            let (front, back) = bytes.split_at(cut);
            let first = skip.feed(front).unwrap();
            let found = match first {
                Some((command, rest)) => (command, rest + back.len()),
                None => skip.feed(back).unwrap().unwrap(),
            };
            assert_eq!(found, (Command::Generate, 3), "cut at {cut}");
        }
    }

    #[test]
    fn malformed_hello_is_refused() {
        assert!(Skip::default().feed(b"GET / HTTP/1.1").is_err());
        let mut bytes = ClientHello::for_name("a.example").encode();
        bytes.push(b'?');
        assert!(Skip::default().feed(&bytes).is_err());
    }
}

//! The five bytes of gRPC before each message: not compressed, and the length, big-endian.

use anyhow::{Result, ensure};

use super::packet::Packet;

/// Returns `packet` with the five bytes before it.
pub(super) fn framed(packet: &Packet) -> Vec<u8> {
    let message = packet.encode();
    let len = u32::try_from(message.len()).unwrap_or(u32::MAX);
    let mut out = vec![0];
    out.extend(len.to_be_bytes());
    out.extend(message);
    out
}

/// Puts messages together from whatever pieces they come in.
#[derive(Debug, Default)]
pub(super) struct Messages {
    buffer: Vec<u8>,
    start: usize,
}

impl Messages {
    pub(super) fn push(&mut self, piece: &[u8]) {
        if self.start == self.buffer.len() {
            self.buffer.clear();
            self.start = 0;
        }
        self.buffer.extend_from_slice(piece);
    }

    /// Returns the next packet that is there as a whole.
    pub(super) fn next(&mut self) -> Result<Option<Packet>> {
        let rest = &self.buffer[self.start..];
        let Some(([compressed, length @ ..], rest)) = rest.split_first_chunk::<5>() else {
            return Ok(None);
        };
        ensure!(*compressed == 0, "a message with flags {compressed}");
        let len = u32::from_be_bytes(*length) as usize;
        ensure!(len <= LIMIT, "a message of {len} bytes, which Go refuses");
        let Some(message) = rest.get(..len) else {
            return Ok(None);
        };
        let packet = Packet::decode(message)?;
        self.start += 5 + len;
        Ok(Some(packet))
    }

    /// Tells whether nothing is left of a message.
    pub(super) fn is_empty(&self) -> bool {
        self.start == self.buffer.len()
    }
}

/// grpc-go's limit of a received message, which upstream does not raise.
const LIMIT: usize = 4 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_may_be_cut_anywhere() {
        let packets = [Packet::data(1, *b"abc"), Packet::Drain];
        let bytes: Vec<u8> = packets.iter().flat_map(framed).collect();
        for size in 1..bytes.len() {
            let mut messages = Messages::default();
            let mut found = Vec::new();
            for piece in bytes.chunks(size) {
                messages.push(piece);
                found.extend(std::iter::from_fn(|| messages.next().unwrap()));
            }
            assert_eq!(found, packets);
            assert!(messages.is_empty());
        }
    }

    #[test]
    fn malformed_message_is_refused() {
        for bytes in [&[1, 0, 0, 0, 0][..], &[0, 0, 0x40, 0, 1]] {
            let mut messages = Messages::default();
            messages.push(bytes);
            assert!(messages.next().is_err());
        }
    }
}

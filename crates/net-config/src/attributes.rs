//! Netlink messages and their attributes as bytes: a writer and a lenient reader.
//!
//! ```text
//!   nlmsghdr (16) │ family header │ attribute │ attribute …        each padded to 4 bytes
//!                                   └ length (2) type (2) value
//! ```
//!
//! Numbers are in host order unless a method says `be`: nf_tables wants network order, rtnetlink
//! host order. Knows no message of either.

/// Bytes of `struct nlmsghdr`: length, type, flags, sequence, port.
pub(crate) const MESSAGE_HEADER: usize = 16;

/// `NLM_F_REQUEST`, `NLM_F_ACK`, `NLM_F_REPLACE`, `NLM_F_EXCL`, `NLM_F_CREATE`, `NLM_F_APPEND`, `NLM_F_DUMP`
/// (include/uapi/linux/netlink.h).
pub(crate) const REQUEST: u16 = 0x1;
pub(crate) const ACK: u16 = 0x4;
pub(crate) const REPLACE: u16 = 0x100;
pub(crate) const EXCLUSIVE: u16 = 0x200;
pub(crate) const CREATE: u16 = 0x400;
pub(crate) const APPEND: u16 = 0x800;
pub(crate) const DUMP: u16 = 0x300;

/// What is left of a type without the nested and byte-order bits.
const TYPE_MASK: u16 = 0x3fff;

/// One or more netlink messages in sending order, with ascending sequence numbers.
#[derive(Debug)]
pub(crate) struct Request {
    bytes: Vec<u8>,
    first: u32,
    next: u32,
}

impl Request {
    /// An empty request whose first message will carry the sequence number `first`.
    pub(crate) fn new(first: u32) -> Self {
        Self {
            bytes: Vec::with_capacity(256),
            first,
            next: first,
        }
    }

    /// Appends a message: `header` is the family header, `fill` writes the attributes.
    pub(crate) fn message(
        mut self,
        kind: u16,
        flags: u16,
        header: &[u8],
        fill: impl FnOnce(&mut Writer<'_>),
    ) -> Self {
        let start = self.bytes.len();
        self.bytes.extend([0; 4]);
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend((flags | REQUEST).to_ne_bytes());
        self.bytes.extend(self.next.to_ne_bytes());
        self.bytes.extend([0; 4]);
        self.bytes.extend(header);
        pad(&mut self.bytes);
        fill(&mut Writer {
            bytes: &mut self.bytes,
        });
        let length = u32::try_from(self.bytes.len() - start)
            .expect("a message holds one link, address or rule");
        self.bytes[start..start + 4].copy_from_slice(&length.to_ne_bytes());
        self.next += 1;
        self
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether `sequence` belongs to one of the messages.
    pub(crate) fn contains(&self, sequence: u32) -> bool {
        (self.first..self.next).contains(&sequence)
    }
}

/// Appends attributes to a message.
#[derive(Debug)]
pub(crate) struct Writer<'a> {
    bytes: &'a mut Vec<u8>,
}

/// The bytes of the attributes that `fill` writes.
pub(crate) fn encoded(fill: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    fill(&mut Writer { bytes: &mut bytes });
    bytes
}

impl Writer<'_> {
    /// Attributes as [`encoded`] returns them.
    pub(crate) fn append(&mut self, attributes: &[u8]) {
        self.bytes.extend(attributes);
    }

    pub(crate) fn put(&mut self, kind: u16, value: &[u8]) {
        let start = self.begin(kind);
        self.bytes.extend(value);
        self.end(start);
    }

    pub(crate) fn put_u32(&mut self, kind: u16, value: u32) {
        self.put(kind, &value.to_ne_bytes());
    }

    pub(crate) fn put_u32_be(&mut self, kind: u16, value: u32) {
        self.put(kind, &value.to_be_bytes());
    }

    /// A string with its terminating zero byte.
    pub(crate) fn put_str(&mut self, kind: u16, value: &str) {
        let start = self.begin(kind);
        self.bytes.extend(value.as_bytes());
        self.bytes.push(0);
        self.end(start);
    }

    /// An attribute made of attributes. Without `NLA_F_NESTED`: neither family asks for it in the
    /// messages used here, and nf_tables leaves it out of its own.
    pub(crate) fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Writer<'_>)) {
        let start = self.begin(kind);
        fill(&mut Writer { bytes: self.bytes });
        self.end(start);
    }

    fn begin(&mut self, kind: u16) -> usize {
        let start = self.bytes.len();
        self.bytes.extend([0; 2]);
        self.bytes.extend(kind.to_ne_bytes());
        start
    }

    fn end(&mut self, start: usize) {
        let length = u16::try_from(self.bytes.len() - start)
            .expect("an attribute holds a checked name, an address or the expressions of a rule");
        self.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        pad(self.bytes);
    }
}

fn pad(bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

/// One message of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Message<'a> {
    pub(crate) kind: u16,
    pub(crate) flags: u16,
    pub(crate) sequence: u32,
    pub(crate) payload: &'a [u8],
}

/// Splits a datagram into messages; `Err` marks a length that does not fit and ends the walk.
pub(crate) fn messages(datagram: &[u8]) -> impl Iterator<Item = Result<Message<'_>, Malformed>> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let found = split_message(rest);
        rest = found.map_or(&[], |(_, rest)| rest);
        Some(found.map(|(message, _)| message).ok_or(Malformed))
    })
}

/// A length that does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

fn split_message(bytes: &[u8]) -> Option<(Message<'_>, &[u8])> {
    let length = usize::try_from(u32_at(bytes, 0)?).ok()?;
    let message = Message {
        kind: u16_at(bytes, 4)?,
        flags: u16_at(bytes, 6)?,
        sequence: u32_at(bytes, 8)?,
        payload: bytes.get(MESSAGE_HEADER..length)?,
    };
    Some((
        message,
        bytes.get(length.next_multiple_of(4)..).unwrap_or_default(),
    ))
}

/// Walks attributes as `(type, value)`; ends at the first that does not fit.
pub(crate) fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(rest, 0)?);
        let kind = u16_at(rest, 2)? & TYPE_MASK;
        let value = rest.get(4..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// The value of the first attribute of type `kind`.
pub(crate) fn attribute(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes)
        .find(|(found, _)| *found == kind)
        .map(|(_, value)| value)
}

/// Text up to the terminating zero byte, if it is UTF-8.
pub(crate) fn text(value: &[u8]) -> Option<&str> {
    std::str::from_utf8(value.split(|byte| *byte == 0).next()?).ok()
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let found = bytes.get(at..)?.first_chunk()?;
    Some(u16::from_ne_bytes(*found))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let found = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_ne_bytes(*found))
}

pub(crate) fn u32_be(value: &[u8]) -> Option<u32> {
    value.try_into().ok().map(u32::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn attributes_read_back_as_written() {
        let request = Request::new(7)
            .message(16, ACK, &[1; 5], |out| {
                out.put_str(3, "lo");
                out.nest(18, |out| out.put_u32(1, 42));
            })
            .message(17, 0, &[], |_| {});

        let found: Vec<_> = messages(request.bytes()).map(Result::unwrap).collect();

        assert_eq!(found.len(), 2);
        assert_eq!(
            (found[0].kind, found[0].flags, found[0].sequence),
            (16, ACK | REQUEST, 7)
        );
        let written = &found[0].payload[8..];
        assert_eq!(text(attribute(written, 3).unwrap()), Some("lo"));
        assert_eq!(
            u32_at(attribute(attribute(written, 18).unwrap(), 1).unwrap(), 0),
            Some(42)
        );
        assert_eq!((found[1].kind, found[1].sequence), (17, 8));
        assert!(found[1].payload.is_empty());
        assert!(request.contains(7) && request.contains(8));
        assert!(!request.contains(6) && !request.contains(9));
    }

    #[test]
    fn length_beyond_datagram_is_malformed() {
        let mut bytes = Request::new(1)
            .message(2, 0, &[0; 4], |_| {})
            .bytes()
            .to_vec();
        bytes.pop();

        let found: Vec<_> = messages(&bytes).collect();

        assert_eq!(found, [Err(Malformed)]);
    }

    proptest! {
        #[test]
        fn readers_end_on_any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
            prop_assert!(messages(&bytes).count() <= bytes.len() / MESSAGE_HEADER + 1);
            prop_assert!(attributes(&bytes).count() <= bytes.len() / 4 + 1);
        }
    }
}

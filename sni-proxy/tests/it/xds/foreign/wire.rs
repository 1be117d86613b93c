//! The wire format of protocol buffers by hand: messages by the numbers of their fields.

/// A message while it is written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Message(Vec<u8>);

/// An empty message.
pub(super) fn new() -> Message {
    Message::default()
}

/// A message in an `Any`, whose type goes by its full name.
pub(super) fn any(kind: &str, message: Message) -> Message {
    let url = format!("type.googleapis.com/{kind}");
    new().text(1, &url).message(2, message)
}

impl Message {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(super) fn number(mut self, field: u64, value: u64) -> Self {
        self.varint(field << 3);
        self.varint(value);
        self
    }

    pub(super) fn text(mut self, field: u64, text: &str) -> Self {
        self.delimited(field, text.as_bytes());
        self
    }

    pub(super) fn message(mut self, field: u64, message: Self) -> Self {
        self.delimited(field, &message.0);
        self
    }

    /// As often as there are messages.
    pub(super) fn each(self, field: u64, messages: impl IntoIterator<Item = Self>) -> Self {
        let messages = messages.into_iter();
        messages.fold(self, |all, message| all.message(field, message))
    }

    fn delimited(&mut self, field: u64, bytes: &[u8]) {
        self.varint(field << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend(bytes);
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}

/// Returns the fields of a message that have a length: all but numbers.
pub(super) fn fields(mut rest: &[u8]) -> Vec<(u64, &[u8])> {
    let mut fields = Vec::new();
    while !rest.is_empty() {
        let key = read_varint(&mut rest);
        match key & 7 {
            0 => {
                read_varint(&mut rest);
            }
            2 => {
                let len = usize::try_from(read_varint(&mut rest)).unwrap();
                let (value, after) = rest.split_at(len);
                fields.push((key >> 3, value));
                rest = after;
            }
            other => panic!("wire type {other}"),
        }
    }
    fields
}

fn read_varint(rest: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, after) = rest.split_first().unwrap();
        *rest = after;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return value;
        }
    }
    panic!("a varint without end")
}

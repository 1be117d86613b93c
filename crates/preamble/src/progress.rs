//! The answer of a parser that was given a prefix of a stream.

/// What a parser could say about the bytes received so far, when they are not wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress<T> {
    /// The preamble is complete.
    Done {
        /// What the preamble says.
        value: T,
        /// Bytes of the input that belong to it; what follows is the next protocol's.
        consumed: usize,
    },
    /// The bytes so far are the start of a preamble, and more are needed.
    Need {
        /// Smallest total length of input, in bytes, that can be complete. Always larger than the
        /// input was and never above the limit given. A caller that tries earlier loses nothing
        /// and may learn of an error sooner.
        at_least: usize,
    },
}

impl<T> Progress<T> {
    /// Returns the same progress with its value replaced by what `f` makes of it.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Progress<U> {
        match self {
            Self::Done { value, consumed } => Progress::Done {
                value: f(value),
                consumed,
            },
            Self::Need { at_least } => Progress::Need { at_least },
        }
    }
}

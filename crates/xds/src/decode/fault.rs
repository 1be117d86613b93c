//! A fault in a resource, and its path.

use std::fmt::Display;

/// A fault, and the path to it that is known so far.
#[derive(Debug)]
pub(crate) struct Fault {
    /// Fields from the outermost, as `filter_chains[2].filters[0]`; may be empty.
    pub(crate) path: String,
    pub(crate) why: String,
}

impl Fault {
    pub(crate) fn new(why: impl Into<String>) -> Self {
        Self {
            path: String::new(),
            why: why.into(),
        }
    }

    /// Creates the fault of one field.
    pub(crate) fn at(field: impl Display, why: impl Into<String>) -> Self {
        Self::new(why).within(field)
    }

    /// Prepends `step` to the path.
    pub(crate) fn within(self, step: impl Display) -> Self {
        let dot = match self.path.as_bytes().first() {
            // What is inside an `Any` is written as `typed_config(TcpProxy).cluster`.
            None | Some(b'(') => "",
            Some(_) => ".",
        };
        let path = format!("{step}{dot}{}", self.path);
        Self { path, ..self }
    }
}

/// Names where a result comes from.
pub(crate) trait Within {
    /// Prepends `step` to a fault's path.
    fn within(self, step: impl Display) -> Self;
}

impl<T> Within for Result<T, Fault> {
    fn within(self, step: impl Display) -> Self {
        self.map_err(|fault| fault.within(step))
    }
}

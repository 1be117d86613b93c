//! A fault in a resource, and its path.

use std::fmt::{self, Display};

/// A fault, and the path to it that is known so far.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Fault {
    /// Fields from the outermost to the one that is wrong, as
    /// `filter_chains[2].filters[0].typed_config(TcpProxy).tunneling_config`; empty when it is the
    /// whole resource.
    path: String,
    why: String,
}

impl Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.why)
    }
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

//! What is wrong with a specification.

use std::fmt;

/// What is wrong with a specification: the first faults, each with its offender, and how many there
/// are.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct BuildErrors {
    first: Vec<String>,
    total: usize,
}

impl BuildErrors {
    /// Faults that are kept; more are only counted.
    pub const KEPT: usize = 20;

    pub(super) fn push(&mut self, fault: fmt::Arguments<'_>) {
        self.total += 1;
        if self.first.len() < Self::KEPT {
            self.first.push(fault.to_string());
        }
    }

    /// Returns the first faults, at most [`KEPT`](Self::KEPT).
    #[must_use]
    pub fn first(&self) -> &[String] {
        &self.first
    }

    /// Returns the number of all faults.
    #[must_use]
    pub fn total(&self) -> usize {
        self.total
    }
}

impl fmt::Display for BuildErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.first.join("; "))?;
        match self.total.saturating_sub(self.first.len()) {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}

impl std::error::Error for BuildErrors {}

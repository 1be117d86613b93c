//! What became of each object, for whoever ran the program.
//!
//! Shows names alone, never what is in an object.

use std::fmt::{self, Write as _};

/// What became of an object; what tells more is greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Change {
    Unchanged,
    Changed,
    Created,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Changed => "changed",
            Self::Created => "created",
            Self::Unchanged => "unchanged",
        })
    }
}

/// Lines about a run: of each object one, whatever passes did to it, then the rest.
#[derive(Debug, Default)]
pub(super) struct Report {
    objects: Vec<(String, Change)>,
    lines: Vec<String>,
}

impl Report {
    /// Tells of an object of the cluster `side`.
    pub(super) fn object(
        &mut self,
        side: &str,
        kind: &str,
        namespace: &str,
        name: &str,
        change: Change,
    ) {
        let what = format!("{side} {kind} {namespace}/{name}");
        match self.objects.iter_mut().find(|(known, _)| *known == what) {
            Some((_, known)) => *known = change.max(*known),
            None => self.objects.push((what, change)),
        }
    }

    /// Tells something else.
    pub(super) fn line(&mut self, text: &str) {
        self.lines.push(text.to_owned());
    }

    /// Returns all lines.
    pub(super) fn into_text(self) -> String {
        let mut text = String::new();
        // Writing to a String does not fail.
        for (what, change) in &self.objects {
            let _ = writeln!(text, "{what}: {change}");
        }
        for line in &self.lines {
            let _ = writeln!(text, "{line}");
        }
        text
    }
}

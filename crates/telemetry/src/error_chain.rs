//! Prints an error with everything that caused it, on one line.

use std::error::Error;
use std::fmt;

/// Displays `error` and its sources as `a: b: c`.
///
/// A source that the text before it already ends with is not repeated, since not every library
/// keeps its sources out of its messages. At most 16 levels are shown.
pub fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl fmt::Display + use<'a> {
    Chain(error)
}

struct Chain<'a>(&'a (dyn Error + 'static));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut printed = self.0.to_string();
        f.write_str(&printed)?;
        let mut cause = self.0.source();
        for _ in 1..MAX_LEVELS {
            let Some(error) = cause else { break };
            let text = error.to_string();
            if !printed.ends_with(&text) {
                write!(f, ": {text}")?;
                printed = text;
            }
            cause = error.source();
        }
        Ok(())
    }
}

/// A chain that points at itself must still end.
const MAX_LEVELS: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Layer {
        text: &'static str,
        source: Option<Box<Self>>,
    }

    fn layers(texts: &[&'static str]) -> Layer {
        let (text, rest) = texts.split_first().expect("at least one layer");
        let source = (!rest.is_empty()).then(|| Box::new(layers(rest)));
        Layer { text, source }
    }

    #[test]
    fn joins_every_level() {
        assert_eq!(chain(&layers(&["a", "b", "c"])).to_string(), "a: b: c");
        assert_eq!(chain(&layers(&["alone"])).to_string(), "alone");
    }

    #[test]
    fn leaves_out_what_was_already_said() {
        let error = layers(&["reading x: denied", "denied", "permission bits"]);
        assert_eq!(
            chain(&error).to_string(),
            "reading x: denied: permission bits"
        );
    }

    #[test]
    fn ends_after_the_bound() {
        let error = layers(&["x1", "y2"].repeat(20));
        assert_eq!(
            chain(&error).to_string().matches(':').count(),
            MAX_LEVELS - 1
        );
    }
}

//! The labels that servers' leases carry, as the flag `--lease-label` gives them.
//!
//! `key=value`, several with commas between. What a label may be made of is the API server's to
//! judge: this only keeps it from becoming something else inside a selector.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// Labels by key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseLabels(pub(super) BTreeMap<String, String>);

/// Why a text gives no labels.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum LabelError {
    /// One key twice.
    #[error("label {0:?} is given twice")]
    Duplicate(String),
    /// No label at all, which would select every lease there is.
    #[error("no label is given")]
    Empty,
    /// No `key=value` of the characters that Kubernetes allows.
    #[error("{0:?} is not of the form key=value")]
    Malformed(String),
}

/// As a selector of what carries all of them.
impl fmt::Display for LeaseLabels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let labels = self.0.iter().map(|(key, value)| format!("{key}={value}"));
        f.write_str(&labels.collect::<Vec<_>>().join(","))
    }
}

impl FromStr for LeaseLabels {
    type Err = LabelError;

    fn from_str(text: &str) -> Result<Self, LabelError> {
        let mut labels = BTreeMap::new();
        for part in text.split(',').map(str::trim) {
            if part.is_empty() {
                continue;
            }
            let malformed = || LabelError::Malformed(part.to_owned());
            let (key, value) = part.split_once('=').ok_or_else(malformed)?;
            if key.is_empty() || !key.chars().all(in_key) || !value.chars().all(in_value) {
                return Err(malformed());
            }
            if labels.insert(key.to_owned(), value.to_owned()).is_some() {
                return Err(LabelError::Duplicate(key.to_owned()));
            }
        }
        if labels.is_empty() {
            return Err(LabelError::Empty);
        }
        Ok(Self(labels))
    }
}

fn in_key(letter: char) -> bool {
    in_value(letter) || letter == '/'
}

fn in_value(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_become_the_selector_of_all_of_them() {
        let labels: Result<LeaseLabels, _> = "k8s-app=a-b, example.com/tier=a".parse();
        assert_eq!(
            labels.unwrap().to_string(),
            "example.com/tier=a,k8s-app=a-b"
        );
    }

    #[test]
    fn malformed_label_is_refused() {
        let parse = |text: &str| text.parse::<LeaseLabels>().unwrap_err();
        for text in ["", ","] {
            assert_eq!(parse(text), LabelError::Empty, "{text}");
        }
        for text in ["a", "=b", "a=b)", "a==b"] {
            assert_eq!(parse(text), LabelError::Malformed(text.to_owned()));
        }
        assert_eq!(parse("a=b,a=c"), LabelError::Duplicate("a".to_owned()));
    }
}

//! Label selectors, and what the API server takes as labels.

use anyhow::{Result, ensure};
use serde::Deserialize;

use super::Labels;

/// Selects by labels; all conditions must hold, none select everything.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Selector {
    #[serde(default)]
    match_labels: Labels,
    #[serde(default)]
    match_expressions: Vec<Expression>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Expression {
    key: String,
    operator: Operator,
    #[serde(default)]
    values: Vec<String>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
enum Operator {
    DoesNotExist,
    Exists,
    In,
    NotIn,
}

impl Selector {
    pub(super) fn check(&self) -> Result<()> {
        check_labels(&self.match_labels)?;
        for one in &self.match_expressions {
            check_key(&one.key)?;
            one.values.iter().try_for_each(|value| check_value(value))?;
            let wants = matches!(one.operator, Operator::In | Operator::NotIn);
            ensure!(wants != one.values.is_empty(), "{one:?}");
        }
        Ok(())
    }

    pub(super) fn matches(&self, labels: &Labels) -> bool {
        let mut wanted = self.match_labels.iter();
        wanted.all(|(key, value)| labels.get(key) == Some(value))
            && self.match_expressions.iter().all(|one| one.holds(labels))
    }
}

impl Expression {
    fn holds(&self, labels: &Labels) -> bool {
        let value = labels.get(&self.key);
        match self.operator {
            Operator::DoesNotExist => value.is_none(),
            Operator::Exists => value.is_some(),
            Operator::In => value.is_some_and(|value| self.values.contains(value)),
            Operator::NotIn => value.is_none_or(|value| !self.values.contains(value)),
        }
    }
}

pub(super) fn check_labels(labels: &Labels) -> Result<()> {
    labels.iter().try_for_each(|(key, value)| {
        check_key(key)?;
        check_value(value)
    })
}

/// Checks a label's key: a name of at most 63 characters, and before it, if there is a slash, a DNS
/// subdomain.
fn check_key(key: &str) -> Result<()> {
    let name = match key.split_once('/') {
        None => key,
        Some((prefix, name)) => {
            let begins = is_subdomain(prefix);
            ensure!(begins, "{key:?} does not begin with a DNS subdomain");
            name
        }
    };
    ensure!(is_word(name, 63, "-_."), "{key:?} is no key of a label");
    Ok(())
}

/// Checks a label's value: empty, or at most 63 characters.
fn check_value(value: &str) -> Result<()> {
    let word = value.is_empty() || is_word(value, 63, "-_.");
    ensure!(word, "{value:?} is no value of a label");
    Ok(())
}

/// Tells whether the text is a DNS subdomain (RFC 1123) as names of objects are.
pub(super) fn is_subdomain(text: &str) -> bool {
    let label = |part: &str| is_word(part, 253, "-") && !part.contains(|c: char| c.is_uppercase());
    text.len() <= 253 && text.split('.').all(label)
}

/// Tells whether the text has letters, digits and some of `inner` between them.
fn is_word(text: &str, longest: usize, inner: &str) -> bool {
    let outer = |c: char| c.is_ascii_alphanumeric();
    text.len() <= longest
        && text.starts_with(outer)
        && text.ends_with(outer)
        && text.chars().all(|c| outer(c) || inner.contains(c))
}

//! Label selectors, and what the API server takes as labels.

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::Labels;
use super::policy::{fields, list, text};

/// Selects by labels; all conditions must hold, none select everything.
#[derive(Clone, Debug, Default)]
pub(super) struct Selector(Vec<Condition>);

#[derive(Clone, Debug)]
struct Condition {
    key: String,
    test: Test,
}

#[derive(Clone, Debug)]
enum Test {
    Exists,
    In(Vec<String>),
    NotExists,
    NotIn(Vec<String>),
}

impl Selector {
    pub(super) fn parse(value: &Value) -> Result<Self> {
        let selector = fields(value, &["matchLabels", "matchExpressions"])?;
        let mut conditions = Vec::new();
        if let Some(labels) = selector.get("matchLabels") {
            let labels = labels.as_object().context("matchLabels is no object")?;
            for (key, value) in labels {
                conditions.push(Condition::parse(key, "In", vec![text(value)?])?);
            }
        }
        for value in list(selector.get("matchExpressions"))? {
            let one = fields(value, &["key", "operator", "values"])?;
            let values = list(one.get("values"))?.iter().map(text);
            conditions.push(Condition::parse(
                &text(one.get("key").context("no key")?)?,
                &text(one.get("operator").context("no operator")?)?,
                values.collect::<Result<_>>()?,
            )?);
        }
        Ok(Self(conditions))
    }

    pub(super) fn matches(&self, labels: &Labels) -> bool {
        self.0.iter().all(|condition| condition.holds(labels))
    }
}

impl Condition {
    fn parse(key: &str, operator: &str, values: Vec<String>) -> Result<Self> {
        check_key(key)?;
        values.iter().try_for_each(|value| check_value(value))?;
        let test = match operator {
            "Exists" => Test::Exists,
            "In" => Test::In(values.clone()),
            "DoesNotExist" => Test::NotExists,
            "NotIn" => Test::NotIn(values.clone()),
            _ => bail!("{operator:?} is no operator"),
        };
        let wants = matches!(test, Test::In(_) | Test::NotIn(_));
        ensure!(wants != values.is_empty(), "{operator} and {values:?}");
        Ok(Self {
            key: key.to_owned(),
            test,
        })
    }

    fn holds(&self, labels: &Labels) -> bool {
        let value = labels.get(&self.key);
        match &self.test {
            Test::Exists => value.is_some(),
            Test::In(values) => value.is_some_and(|value| values.contains(value)),
            Test::NotExists => value.is_none(),
            Test::NotIn(values) => value.is_none_or(|value| !values.contains(value)),
        }
    }
}

/// Checks a label's key: a name of at most 63 characters, and before it, if there is a slash, a DNS
/// subdomain.
pub(super) fn check_key(key: &str) -> Result<()> {
    let name = match key.split_once('/') {
        None => key,
        Some((prefix, name)) => {
            ensure!(
                is_subdomain(prefix),
                "{key:?} does not begin with a DNS subdomain"
            );
            name
        }
    };
    ensure!(is_word(name, 63, "-_."), "{key:?} is no key of a label");
    Ok(())
}

/// Checks a label's value: empty, or at most 63 characters.
pub(super) fn check_value(value: &str) -> Result<()> {
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

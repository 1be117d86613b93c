//! The selectors in a PromQL expression: which metrics, by which labels.
//!
//! Finds them by their form. That is no parser of PromQL: whether an expression is one, `promtool`
//! says.

use regex_lite::Regex;

/// A metric that an expression selects, and by which labels.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Selector {
    pub name: String,
    /// Its matchers, in their order.
    pub matchers: Vec<Matcher>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Matcher {
    pub label: String,
    /// `=`, `!=`, `=~` or `!~`.
    pub operator: String,
    pub value: String,
}

impl Matcher {
    /// Returns the plain words that a value stands for; none for a pattern that is more than words.
    pub fn words(&self) -> Vec<&str> {
        let plain = |word: &&str| {
            let letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
            !word.is_empty() && word.bytes().all(letter)
        };
        self.value.split('|').filter(plain).collect()
    }
}

/// Returns the selectors of an expression, in their order.
///
/// # Panics
/// Never: the patterns are fixed.
pub fn selectors(expression: &str) -> Vec<Selector> {
    // What is in quotes may look like anything, so braces are looked at by their own pattern.
    let selector = pattern(
        r#"\b((?:rhizome|konnectivity|process)[_:][a-z0-9_:]+|up)\b\s*(\{(?:[^}"]|"[^"]*")*\})?"#,
    );
    let matcher = pattern(r#"([a-z_]+)\s*(=~|!~|!=|=)\s*"([^"]*)""#);
    let quoted = pattern(r#""[^"]*""#);
    let mut all = Vec::new();
    for found in selector.captures_iter(expression) {
        let Some(name) = found.get(1) else { continue };
        let mut before = quoted.find_iter(expression);
        if before.any(|text| text.range().contains(&name.start())) {
            continue;
        }
        let braces = found.get(2).map_or("", |braces| braces.as_str());
        let text = |captures: &regex_lite::Captures<'_>, at| {
            captures.get(at).map_or("", |own| own.as_str()).to_owned()
        };
        let matchers = matcher.captures_iter(braces).map(|own| Matcher {
            label: text(&own, 1),
            operator: text(&own, 2),
            value: text(&own, 3),
        });
        all.push(Selector {
            name: name.as_str().to_owned(),
            matchers: matchers.collect(),
        });
    }
    all
}

#[expect(clippy::expect_used, reason = "fixed patterns, which a test compiles")]
fn pattern(text: &str) -> Regex {
    Regex::new(text).expect("a fixed pattern is well formed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_metrics_and_labels_are_found() {
        let expression = r#"sum by (job) (rate(rhizome_x_total{job="up",reason=~"a|b_c|d.*"}[5m]))
            / up and on (process) rhizome:y:rate5m{k!~"}"} > process_open_fds"#;
        let found = selectors(expression);
        let names: Vec<&str> = found.iter().map(|own| own.name.as_str()).collect();
        let expected = [
            "rhizome_x_total",
            "up",
            "rhizome:y:rate5m",
            "process_open_fds",
        ];
        assert_eq!(names, expected);
        assert_eq!(found[0].matchers.len(), 2);
        assert_eq!(found[0].matchers[1].operator, "=~");
        assert_eq!(found[0].matchers[1].words(), ["a", "b_c"]);
        assert_eq!(found[2].matchers[0].label, "k");
        assert!(found[1].matchers.is_empty());
    }
}

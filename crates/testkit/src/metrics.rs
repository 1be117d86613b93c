//! Reads Prometheus text, so that tests assert on figures and not on lines.
//!
//! Understands what the exposition format and OpenMetrics have in common: comments, names, labels
//! with the three escapes, a value, an optional time stamp or exemplar (ignored).

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};

#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The metric's name, with `_total`, `_bucket`, `_sum` or `_count` where the line has it.
    pub name: String,
    /// The labels, unescaped.
    pub labels: BTreeMap<String, String>,
    /// The value; `NaN` and the infinities as the text says.
    pub value: f64,
}

/// All samples of one scrape, in their order.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    samples: Vec<Sample>,
}

impl Metrics {
    pub fn parse(text: &str) -> Result<Self> {
        let samples = text
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
            .map(|line| sample(line).with_context(|| format!("reading the sample {line:?}")))
            .collect::<Result<_>>()?;
        Ok(Self { samples })
    }

    /// Returns the sum over all samples called `name` that carry at least `labels`; `None` when
    /// there is no such sample.
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let mut matching = self.matching(name, labels).peekable();
        matching.peek()?;
        Some(matching.map(|sample| sample.value).sum())
    }

    /// Returns the samples called `name` that carry at least `labels`.
    pub fn matching<'a>(
        &'a self,
        name: &'a str,
        labels: &'a [(&'a str, &'a str)],
    ) -> impl Iterator<Item = &'a Sample> {
        self.samples.iter().filter(move |sample| {
            let has = |(key, value): &(&str, &str)| {
                sample.labels.get(*key).is_some_and(|found| found == value)
            };
            sample.name == name && labels.iter().all(has)
        })
    }

    pub fn samples(&self) -> &[Sample] {
        &self.samples
    }
}

fn sample(line: &str) -> Result<Sample> {
    let name_end = line.find(['{', ' ', '\t']).context("no value")?;
    let (name, rest) = line.split_at(name_end);
    if name.is_empty() {
        bail!("no name");
    }
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(inside) => labels(inside)?,
        None => (BTreeMap::new(), rest),
    };
    let word = rest.split_whitespace().next().context("no value")?;
    let value = word.parse::<f64>();
    let value = value.with_context(|| format!("{word:?} is no number"))?;
    Ok(Sample {
        name: name.to_owned(),
        labels,
        value,
    })
}

/// Reads `a="b",c="d"}` and returns what follows the brace.
fn labels(mut rest: &str) -> Result<(BTreeMap<String, String>, &str)> {
    let mut labels = BTreeMap::new();
    loop {
        rest = rest.trim_start_matches([',', ' ']);
        if let Some(after) = rest.strip_prefix('}') {
            return Ok((labels, after));
        }
        let (key, after) = rest.split_once("=\"").context("a label without a value")?;
        let (value, after) = quoted(after)?;
        if labels.insert(key.trim().to_owned(), value).is_some() {
            bail!("the label {key} occurs twice");
        }
        rest = after;
    }
}

/// Reads up to the closing quote and returns what follows it.
fn quoted(text: &str) -> Result<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => return Ok((value, &text[at + 1..])),
            '\\' => match chars.next().context("a text that ends in an escape")?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            other => value.push(other),
        }
    }
    bail!("a text without an end")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# HELP a_total Things.\n# TYPE a_total counter\n\
        a_total{side=\"x\",cluster=\"outbound|443||k\\\"q\"} 3\n\
        a_total{side=\"y\",cluster=\"\"} 4 1700000000\nb 1.5e3\nc +Inf\n# EOF\n";

    #[test]
    fn values_are_found_by_some_labels_and_summed() {
        let metrics = Metrics::parse(TEXT).unwrap();
        assert_eq!(metrics.value("a_total", &[("side", "x")]), Some(3.0));
        let escaped = [("cluster", "outbound|443||k\"q")];
        assert_eq!(metrics.value("a_total", &escaped), Some(3.0));
        assert_eq!(metrics.value("a_total", &[]), Some(7.0));
        assert_eq!(metrics.value("b", &[]), Some(1500.0));
        assert_eq!(metrics.value("c", &[]), Some(f64::INFINITY));
        assert_eq!(metrics.value("a_total", &[("side", "z")]), None);
        assert_eq!(metrics.value("d", &[]), None);
    }

    #[test]
    fn lines_that_are_no_samples_are_refused() {
        for text in [
            "a",
            "a{b=\"c\"",
            "a{b=\"c} 1",
            "a{b} 1",
            "a x",
            "{} 1",
            "a{b=\"\",b=\"\"} 1",
        ] {
            assert!(Metrics::parse(text).is_err(), "{text}");
        }
    }
}

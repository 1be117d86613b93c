//! Writes families and samples as Prometheus text 0.0.4 or OpenMetrics 1.0.
//!
//! The two differ where it matters: OpenMetrics names a counter's family without `_total` and
//! insists on that suffix on its samples, writes bucket bounds with a fraction, escapes quotes in
//! help texts, and ends with `# EOF`. A counter whose name has no `_total` is of type `unknown`
//! there, so that its samples have one name in both formats.

use std::collections::BTreeSet;
use std::fmt::{Display, Write};

use super::Description;

crate::labels! {
    /// The kind of a family, by the word that text exposition uses.
    pub enum Kind {
        /// Only rises.
        Counter = "counter",
        /// Rises and falls.
        Gauge = "gauge",
        /// A distribution over buckets.
        Histogram = "histogram",
    }
}

/// How series are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exposition {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Prometheus text 0.0.4.
    Text,
}

impl Exposition {
    /// Returns the value of `Content-Type`.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// Chooses by the value of an `Accept` header (RFC 9110 section 12.5.1): OpenMetrics when it
    /// is named, in version 1.0.0 or without a version, and not less wanted than plain text.
    pub fn negotiate(accept: &str) -> Self {
        let (mut open_metrics, mut text) = (0.0, 0.0);
        for range in accept.split(',').take(MAX_RANGES) {
            let mut parts = range.split(';').map(str::trim);
            let media = parts.next().unwrap_or_default();
            let (mut quality, mut version) = (1.0, None);
            for (name, value) in parts.filter_map(|part| part.split_once('=')) {
                match name.trim() {
                    "q" => quality = value.trim().parse::<f32>().unwrap_or(0.0),
                    "version" => version = Some(value.trim().trim_matches('"')),
                    _ => {}
                }
            }
            if media.eq_ignore_ascii_case("application/openmetrics-text") {
                if version.is_none_or(|version| version == "1.0.0") {
                    open_metrics = quality.max(open_metrics);
                }
            } else if media.eq_ignore_ascii_case("text/plain") {
                text = quality.max(text);
            }
        }
        if open_metrics > 0.0 && open_metrics >= text {
            Self::OpenMetrics
        } else {
            Self::Text
        }
    }
}

/// More media ranges than any scraper sends.
const MAX_RANGES: usize = 32;

/// Takes families and writes them down.
#[derive(Debug)]
pub struct Encoder {
    out: String,
    exposition: Exposition,
    /// Families written so far: a second one of the same name would make scrapers refuse it all.
    written: BTreeSet<String>,
    /// Filled instead of `out` when only the families are wanted.
    descriptions: Option<Vec<Description>>,
}

impl Encoder {
    pub(super) fn new(exposition: Exposition) -> Self {
        Self {
            out: String::new(),
            exposition,
            written: BTreeSet::new(),
            descriptions: None,
        }
    }

    /// Tells whether only the families are wanted, as once for each collector: one of very many
    /// samples need not look for them.
    pub fn only_describes(&self) -> bool {
        self.descriptions.is_some()
    }

    /// Writes a family with the samples that `write` gives. One without samples leaves no trace;
    /// one whose name was written before is left out.
    pub fn family(
        &mut self,
        name: &str,
        help: &str,
        kind: Kind,
        write: impl FnOnce(&mut FamilyEncoder<'_>),
    ) {
        if !self.written.insert(name.to_owned()) {
            return;
        }
        let mut family = FamilyEncoder {
            encoder: self,
            name,
            help,
            kind,
            started: false,
            labels: Vec::new(),
        };
        write(&mut family);
        let labels = family.labels;
        if let Some(descriptions) = &mut self.descriptions {
            let (name, help) = (name.to_owned(), help.to_owned());
            descriptions.push(Description {
                name,
                kind,
                help,
                labels,
            });
        }
    }

    /// Writes a family of one sample without labels.
    pub fn value(&mut self, name: &str, help: &str, kind: Kind, value: impl Display) {
        self.family(name, help, kind, |family| family.sample(&[], value));
    }

    pub(super) fn finish(mut self) -> String {
        if self.exposition == Exposition::OpenMetrics {
            self.out.push_str("# EOF\n");
        }
        self.out
    }

    fn header(&mut self, name: &str, help: &str, kind: Kind) {
        let (name, kind) = match (self.exposition, kind, name.strip_suffix("_total")) {
            (Exposition::OpenMetrics, Kind::Counter, Some(family)) => (family, kind.as_str()),
            (Exposition::OpenMetrics, Kind::Counter, None) => (name, "unknown"),
            _ => (name, kind.as_str()),
        };
        self.out.push_str("# HELP ");
        self.out.push_str(name);
        self.out.push(' ');
        escape(
            &mut self.out,
            help,
            self.exposition == Exposition::OpenMetrics,
        );
        self.out.push_str("\n# TYPE ");
        self.out.push_str(name);
        self.out.push(' ');
        self.out.push_str(kind);
        self.out.push('\n');
    }
}

/// Takes the samples of one family.
#[derive(Debug)]
pub struct FamilyEncoder<'a> {
    encoder: &'a mut Encoder,
    name: &'a str,
    help: &'a str,
    kind: Kind,
    started: bool,
    labels: Vec<String>,
}

impl FamilyEncoder<'_> {
    /// Says which labels the samples have, for a collector that may have none to show when its
    /// families are listed.
    pub fn labels(&mut self, names: &[&str]) {
        if self.encoder.only_describes() {
            self.labels = names.iter().map(|&name| name.to_owned()).collect();
        }
    }

    /// Writes one sample, which is a number. Label values may be any text.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) {
        self.line("", labels, None, value);
    }

    /// Writes a histogram: `counts` has one entry per bound and one more, none of them cumulative.
    pub(super) fn histogram(
        &mut self,
        labels: &[(&str, &str)],
        bounds: &[f64],
        counts: &[u64],
        sum: f64,
    ) {
        let mut total = 0;
        let bounds = bounds.iter().copied().chain([f64::INFINITY]);
        for (bound, count) in bounds.zip(counts) {
            total += count;
            self.line("_bucket", labels, Some(bound), total);
        }
        self.line("_sum", labels, None, sum);
        self.line("_count", labels, None, total);
    }

    fn line(
        &mut self,
        suffix: &str,
        labels: &[(&str, &str)],
        le: Option<f64>,
        value: impl Display,
    ) {
        if self.encoder.descriptions.is_some() {
            if self.labels.is_empty() {
                self.labels = labels.iter().map(|(name, _)| (*name).to_owned()).collect();
            }
            return;
        }
        if !std::mem::replace(&mut self.started, true) {
            self.encoder.header(self.name, self.help, self.kind);
        }
        let exposition = self.encoder.exposition;
        let out = &mut self.encoder.out;
        out.push_str(self.name);
        out.push_str(suffix);
        write_labels(out, labels, le, exposition);
        out.push(' ');
        write_value(out, value);
        out.push('\n');
    }
}

/// Runs a collector for its families alone.
pub(super) fn families_of(write: &dyn Fn(&mut Encoder)) -> Vec<Description> {
    let mut encoder = Encoder::new(Exposition::Text);
    encoder.descriptions = Some(Vec::new());
    write(&mut encoder);
    encoder.descriptions.unwrap_or_default()
}

/// Says what is wrong with the names of a family, if anything is.
pub(super) fn check(family: &Description) -> Result<(), &'static str> {
    let word = |name: &str, more: &str| {
        let first = |c: char| c.is_ascii_alphabetic() || more.contains(c);
        name.starts_with(first) && name.chars().all(|c| first(c) || c.is_ascii_digit())
    };
    if !word(&family.name, "_:") {
        return Err("not a metric name");
    }
    let mut seen = BTreeSet::new();
    for label in &family.labels {
        if !word(label, "_") || label.starts_with("__") {
            return Err("not a label name");
        }
        if label == "le" && family.kind == Kind::Histogram {
            return Err("`le` is the histogram's own label");
        }
        if !seen.insert(label) {
            return Err("a label comes twice");
        }
    }
    Ok(())
}

/// Lists the names that a family takes in either format.
pub(super) fn exposed_names(name: &str, kind: Kind) -> Vec<String> {
    let mut names = vec![name.to_owned()];
    match kind {
        Kind::Counter => names.extend(name.strip_suffix("_total").map(str::to_owned)),
        Kind::Gauge => {}
        Kind::Histogram => {
            names.extend(["_bucket", "_sum", "_count"].map(|suffix| format!("{name}{suffix}")));
        }
    }
    names
}

fn write_labels(
    out: &mut String,
    labels: &[(&str, &str)],
    le: Option<f64>,
    exposition: Exposition,
) {
    if labels.is_empty() && le.is_none() {
        return;
    }
    let mut separator = '{';
    for (name, value) in labels {
        out.push(std::mem::replace(&mut separator, ','));
        out.push_str(name);
        out.push_str("=\"");
        escape(out, value, true);
        out.push('"');
    }
    if let Some(bound) = le {
        out.push(separator);
        out.push_str("le=\"");
        write_bound(out, bound, exposition);
        out.push('"');
    }
    out.push('}');
}

/// Escapes backslash and line feed, and quotes where they delimit.
fn escape(out: &mut String, text: &str, quotes: bool) {
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '"' if quotes => out.push_str("\\\""),
            c => out.push(c),
        }
    }
}

fn write_bound(out: &mut String, bound: f64, exposition: Exposition) {
    // OpenMetrics 1.0, "Canonical numbers": a fraction even on whole numbers.
    let whole = bound.is_finite() && bound.fract() == 0.0 && bound.abs() < 1e15;
    write_value(out, bound);
    if exposition == Exposition::OpenMetrics && whole {
        out.push_str(".0");
    }
}

fn write_value(out: &mut String, value: impl Display) {
    let from = out.len();
    let written = write!(out, "{value}");
    debug_assert!(written.is_ok(), "a String takes everything");
    let infinite = match out.get(from..) {
        Some("inf") => "+Inf",
        Some("-inf") => "-Inf",
        _ => return,
    };
    out.replace_range(from.., infinite);
}

//! The result of one run: what was measured, beside its targets and peers; as a table or as JSON.
//!
//! ```text
//! values, latencies ──add──▶ Run ──▶ table: median [low..high]  must  ok/MISS  × peer
//! Known, facts ─────finish──▶ └────▶ one JSON object, which `rhizome-bench report` reads back
//! ```

use std::io::{self, Write};

use serde::{Deserialize, Serialize};

use crate::latency::Latencies;
use crate::machine::Facts;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Figure {
    pub(crate) name: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) better: Better,
}

impl Figure {
    pub(crate) const fn higher(name: &'static str, unit: &'static str) -> Self {
        let better = Better::Higher;
        Self { name, unit, better }
    }

    pub(crate) const fn lower(name: &'static str, unit: &'static str) -> Self {
        let better = Better::Lower;
        Self { name, unit, better }
    }
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Better {
    Higher,
    Lower,
}

/// A bound that a median is held to.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

impl Bound {
    fn holds(self, value: f64) -> bool {
        match self {
            Self::AtLeast(bound) => value >= bound,
            Self::AtMost(bound) => value <= bound,
        }
    }
}

/// What is known of a figure beside its measured values.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Known {
    pub(crate) must: Option<Bound>,
    pub(crate) peer: Option<f64>,
}

/// Everything measured, in the order in which it was first.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Run {
    /// The subcommand, or the part of the suite.
    pub(crate) name: String,
    /// Where the figures come from: name and text.
    pub(crate) facts: Vec<(String, String)>,
    /// The peer that `Row::peer` belongs to; empty when there is none.
    pub(crate) compared: String,
    pub(crate) rows: Vec<Row>,
    pub(crate) curves: Vec<Curve>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Row {
    /// Through what: a transport, a proxy, or [`DIRECT`].
    pub(crate) setup: String,
    pub(crate) case: String,
    pub(crate) figure: String,
    pub(crate) unit: String,
    pub(crate) better: Better,
    /// The value in the middle; the mean of the two in the middle, if there are.
    pub(crate) median: f64,
    /// The lowest and the highest, where repetitions differ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) range: Option<(f64, f64)>,
    pub(crate) count: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) must: Option<Bound>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) peer: Option<f64>,
    /// The axis along which this is one point, and its position.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) at: Option<(String, f64)>,
    /// What was added, in ascending order.
    #[serde(default)]
    values: Vec<f64>,
    #[serde(skip)]
    of: Option<Figure>,
}

/// The latencies of one case through one setup, of all repetitions together.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Curve {
    pub(crate) setup: String,
    pub(crate) case: String,
    /// Share of all operations (0 to 1), and the microseconds that it did not exceed.
    pub(crate) points: Vec<(f64, f64)>,
    #[serde(skip)]
    latencies: Latencies,
}

impl Run {
    pub(crate) fn add(&mut self, setup: &str, case: &str, figure: Figure, value: f64) {
        let same = |row: &&mut Row| row.is(setup, case, figure);
        if let Some(row) = self.rows.iter_mut().find(same) {
            return row.insert(value);
        }
        self.rows.push(Row {
            setup: setup.to_owned(),
            case: case.to_owned(),
            figure: figure.name.to_owned(),
            unit: figure.unit.to_owned(),
            better: figure.better,
            median: value,
            range: None,
            count: 1,
            must: None,
            peer: None,
            at: None,
            values: vec![value],
            of: Some(figure),
        });
    }

    /// Adds the median, the 99th percentile and the longest, as `figures`, times so many a second;
    /// and all latencies of this repetition to a curve: of the case, or of `part` of it. Nothing where there
    /// are none.
    pub(crate) fn add_latencies(
        &mut self,
        setup: &str,
        (case, part): (&str, Option<&str>),
        figures: [Figure; 3],
        a_second: f64,
        latencies: &Latencies,
    ) {
        if latencies.count() == 0 {
            return;
        }
        let [p50, p99] = [0.5, 0.99].map(|share| latencies.quantile(share));
        for (figure, took) in figures.into_iter().zip([p50, p99, latencies.max()]) {
            self.add(setup, case, figure, took.as_secs_f64() * a_second);
        }
        match part {
            Some(part) => self.add_curve(setup, &format!("{case}: {part}"), latencies),
            None => self.add_curve(setup, case, latencies),
        }
    }

    pub(crate) fn add_curve(&mut self, setup: &str, case: &str, latencies: &Latencies) {
        let same = |curve: &&mut Curve| curve.setup == setup && curve.case == case;
        if let Some(curve) = self.curves.iter_mut().find(same) {
            return curve.latencies.add(latencies);
        }
        self.curves.push(Curve {
            setup: setup.to_owned(),
            case: case.to_owned(),
            points: Vec::new(),
            latencies: latencies.clone(),
        });
    }

    pub(crate) fn median(&self, setup: &str, case: &str, figure: Figure) -> Option<f64> {
        let mut rows = self.rows.iter();
        let row = rows.find(|row| row.is(setup, case, figure))?;
        Some(row.median)
    }

    pub(crate) fn best(
        &self,
        case: &str,
        figure: Figure,
        counts: impl Fn(&str) -> bool,
    ) -> Option<f64> {
        let same = |row: &&Row| row.is(&row.setup, case, figure) && counts(&row.setup);
        let medians = self.rows.iter().filter(same).map(|row| row.median);
        medians.reduce(match figure.better {
            Better::Higher => f64::max,
            Better::Lower => f64::min,
        })
    }

    /// Adds what is `known` of each setup, case and figure, and rounds what was measured.
    pub(crate) fn finish(
        &mut self,
        facts: Facts,
        compared: &str,
        known: impl Fn(&Self, &str, &str, Figure) -> Known,
    ) {
        let known_of = |row: &Row| {
            let known = |of| known(self, &row.setup, &row.case, of);
            row.of.map(known).unwrap_or_default()
        };
        let known: Vec<Known> = self.rows.iter().map(known_of).collect();
        for (row, known) in self.rows.iter_mut().zip(known) {
            (row.must, row.peer) = (known.must, known.peer.map(rounded));
            row.median = rounded(row.median);
            row.values
                .iter_mut()
                .for_each(|value| *value = rounded(*value));
            row.range = row.range.map(|(low, high)| (rounded(low), rounded(high)));
        }
        for curve in &mut self.curves {
            let points = curve.latencies.curve().into_iter();
            let micros = points.map(|(share, took)| (share, rounded(took.as_secs_f64() * 1e6)));
            curve.points = micros.collect();
        }
        let command = facts.iter().find(|(name, _)| *name == "command");
        let name = command.and_then(|(_, text)| text.split(' ').nth(1));
        name.unwrap_or("results").clone_into(&mut self.name);
        compared.clone_into(&mut self.compared);
        let facts = facts.into_iter();
        self.facts = facts.map(|(name, text)| (name.to_owned(), text)).collect();
    }

    /// Returns the median without a proxy of the row's case and figure.
    pub(crate) fn direct(&self, row: &Row) -> Option<f64> {
        let same = |other: &&Row| {
            other.setup == DIRECT && other.case == row.case && other.figure == row.figure
        };
        let direct = self.rows.iter().find(same)?;
        (row.setup != DIRECT).then_some(direct.median)
    }

    pub(crate) fn judged(&self) -> (usize, usize) {
        let holds: Vec<bool> = self.rows.iter().filter_map(Row::holds).collect();
        let held = holds.iter().filter(|holds| **holds).count();
        (held, holds.len() - held)
    }

    pub(crate) fn table(&self, out: &mut impl Write) -> io::Result<()> {
        for (name, text) in &self.facts {
            writeln!(out, "{name:13} {text}")?;
        }
        writeln!(out)?;
        let times = if self.compared.is_empty() { "" } else { TIMES };
        let head = [
            "setup", "case", "figure", "median", "", "direct", "must", "", times,
        ];
        let mut rows = vec![head.map(str::to_owned)];
        rows.extend(self.rows.iter().map(|row| row.cells(self.direct(row))));
        let widths: [usize; COLUMNS] = std::array::from_fn(|column| {
            let widths = rows.iter().map(|row| row[column].chars().count());
            widths.max().unwrap_or(0)
        });
        for row in &rows {
            let mut line = String::new();
            for (nth, (text, width)) in row.iter().zip(widths).enumerate() {
                line += &if nth < 3 {
                    format!("{text:width$}  ")
                } else {
                    format!("{text:>width$}  ")
                };
            }
            writeln!(out, "{}", line.trim_end())?;
        }
        let note = "median [lowest..highest]; direct: without a proxy, in this run";
        writeln!(out, "\n{note}")?;
        if !self.compared.is_empty() {
            writeln!(out, "{TIMES}: how many times better than {}", self.compared)?;
        }
        let (held, missed) = self.judged();
        writeln!(out, "{held} targets held, {missed} missed")
    }
}

impl Row {
    fn is(&self, setup: &str, case: &str, figure: Figure) -> bool {
        self.setup == setup && self.case == case && self.of == Some(figure)
    }

    fn insert(&mut self, value: f64) {
        let at = self.values.partition_point(|other| *other < value);
        self.values.insert(at, value);
        self.count = self.values.len();
        let [lower, upper] = [(self.count - 1) / 2, self.count / 2].map(|nth| self.values[nth]);
        self.median = f64::midpoint(lower, upper);
        let (low, high) = (self.values[0], self.values[self.count - 1]);
        self.range = (low < high).then_some((low, high));
    }

    /// Returns whether the target holds: of the median, and everywhere for what is never to happen.
    fn holds(&self) -> Option<bool> {
        let must = self.must?;
        let of_all = must == Bound::AtMost(0.0);
        Some(must.holds(if of_all { self.high() } else { self.median }))
    }

    /// Returns how many times better the median is than the peer's, where that is defined.
    fn times(&self) -> Option<f64> {
        let times = match self.better {
            Better::Higher => self.median / self.peer?,
            Better::Lower => self.peer? / self.median,
        };
        (times.is_finite() && times > 0.0).then_some(times)
    }

    pub(crate) fn high(&self) -> f64 {
        self.range.map_or(self.median, |(_, high)| high)
    }

    /// Returns `ok` or `MISS`; empty where there is no target.
    pub(crate) fn verdict(&self) -> &'static str {
        match self.holds() {
            Some(true) => "ok",
            Some(false) => "MISS",
            None => "",
        }
    }

    pub(crate) fn cells(&self, direct: Option<f64>) -> [String; COLUMNS] {
        let spread = |(low, high)| format!("[{}..{}]", number(low), number(high));
        let target = match self.must {
            Some(Bound::AtLeast(bound)) => format!("≥ {}", number(bound)),
            Some(Bound::AtMost(bound)) => format!("≤ {}", number(bound)),
            None => String::new(),
        };
        [
            self.setup.clone(),
            self.case.clone(),
            format!("{}, {}", self.figure, self.unit),
            number(self.median),
            self.range.map(spread).unwrap_or_default(),
            direct.map(number).unwrap_or_default(),
            target,
            self.verdict().to_owned(),
            self.times().map(number).unwrap_or_default(),
        ]
    }
}

/// Rounds to four significant digits, which is finer than any repetition repeats.
fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let scale = 10_f64.powi(3 - value.abs().log10().floor() as i32);
    (value * scale).round() / scale
}

/// Returns three significant digits, more for large numbers.
pub(crate) fn number(value: f64) -> String {
    let decimals = match value.abs() {
        large if large >= 100.0 => 0,
        middle if middle >= 10.0 => 1,
        small if small >= 1.0 => 2,
        _ => 3,
    };
    let text = format!("{value:.decimals$}");
    if text.contains('.') {
        return text.trim_end_matches('0').trim_end_matches('.').to_owned();
    }
    text
}

/// The setup without a proxy.
pub(crate) const DIRECT: &str = "direct";
/// The head of the column of ratios.
const TIMES: &str = "× peer";
const COLUMNS: usize = 9;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const RATE: Figure = Figure::higher("rate", "per s");
    const TIME: Figure = Figure::lower("time", "s");

    fn finished(values: &[(&str, &str, Figure, f64)]) -> Run {
        let mut run = Run::default();
        for (setup, case, figure, value) in values {
            run.add(setup, case, *figure, *value);
        }
        let facts = vec![("command", "rhizome-bench tls --rounds 3".to_owned())];
        run.finish(facts, "a peer", |_, setup, _, _| match setup {
            DIRECT => Known::default(),
            _ => Known {
                must: Some(Bound::AtLeast(30.0)),
                peer: Some(10.0),
            },
        });
        run
    }

    #[test]
    fn table_shows_target_and_ceiling() {
        let values = [(DIRECT, 100.0), ("proxy", 20.0)];
        let run = finished(&values.map(|(setup, value)| (setup, "dials", RATE, value)));
        let mut table = Vec::new();
        run.table(&mut table).unwrap();
        let table = String::from_utf8(table).unwrap();
        let line = table.lines().find(|line| line.contains("proxy")).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        let expected = [
            "proxy", "dials", "rate,", "per", "s", "20", "100", "≥", "30", "MISS", "2",
        ];
        assert_eq!(words, expected);
        assert!(table.contains("0 targets held, 1 missed"), "{table}");
        assert!(table.contains("× peer: how many times better than a peer"));
    }

    #[test]
    fn json_reads_back_as_the_same_run() {
        let dials = [41.123, 40.0, 42.0].map(|value| ("proxy", "dials", RATE, value));
        let run = finished(&[&dials[..], &[(DIRECT, "dials", TIME, 2.0)]].concat());
        let text = serde_json::to_string(&run).unwrap();
        let read: Run = serde_json::from_str(&text).unwrap();
        assert_eq!((read.name.as_str(), read.judged()), ("tls", (1, 0)));
        let [dials, direct] = &read.rows[..] else {
            panic!("two rows: {text}")
        };
        assert_eq!((dials.median, dials.range), (41.12, Some((40.0, 42.0))));
        assert_eq!((dials.count, dials.peer), (3, Some(10.0)));
        assert_eq!(dials.must, Some(Bound::AtLeast(30.0)));
        assert_eq!((direct.must, direct.peer), (None, None));
        assert_eq!(serde_json::to_string(&read).unwrap(), text);
    }

    #[test]
    fn one_failure_in_many_rounds_misses_a_bound_of_zero() {
        let mut run = Run::default();
        for failed in [0.0, 0.0, 0.0, 1.0] {
            run.add("proxy", "dials", TIME, failed);
        }
        run.add_latencies(
            "proxy",
            ("dials", None),
            [RATE; 3],
            1.0,
            &Latencies::default(),
        );
        run.finish(Vec::new(), "", |_, _, _, _| Known {
            must: Some(Bound::AtMost(0.0)),
            peer: None,
        });
        // Latencies of nothing are no figures.
        assert_eq!((run.judged(), run.rows.len()), ((0, 1), 1));
    }

    #[test]
    fn ratio_follows_the_better_direction() {
        let run = finished(&[("proxy", "idle", TIME, 2.0), ("proxy", "none", TIME, 0.0)]);
        let times: Vec<_> = run.rows.iter().map(Row::times).collect();
        assert_eq!(times, [Some(5.0), None]);
    }

    #[test]
    fn repetitions_have_median_spread_and_curve() {
        let mut run = Run::default();
        let mut latencies = Latencies::default();
        latencies.record(Duration::from_millis(1));
        for (value, median, range) in [
            (3.0, 3.0, None),
            (1.0, 2.0, Some((1.0, 3.0))),
            (2.0, 2.0, Some((1.0, 3.0))),
            (2.5, 2.25, Some((1.0, 3.0))),
        ] {
            run.add("direct", "dials", RATE, value);
            run.add_curve("direct", "dials", &latencies);
            assert_eq!(run.median("direct", "dials", RATE), Some(median));
            assert_eq!(run.rows[0].range, range);
        }
        assert_eq!((run.rows.len(), run.rows[0].count), (1, 4));
        assert_eq!((run.curves.len(), run.curves[0].latencies.count()), (1, 4));
        assert_eq!(run.median("other", "dials", RATE), None);
        assert_eq!(run.median("direct", "dials", TIME), None);
    }

    #[test]
    fn a_bound_includes_itself() {
        assert!(Bound::AtLeast(2.0).holds(2.0) && !Bound::AtLeast(2.0).holds(1.9));
        assert!(Bound::AtMost(2.0).holds(2.0) && !Bound::AtMost(2.0).holds(2.1));
    }

    #[test]
    fn numbers_have_three_significant_digits() {
        let numbers = [0.0, 0.123_456, 1.5, 12.345, 123.456, 12_345.6, -0.5];
        let expected = ["0", "0.123", "1.5", "12.3", "123", "12346", "-0.5"];
        assert_eq!(numbers.map(number), expected);
        assert_eq!(rounded(12_345.678), 12_350.0);
        assert_eq!(rounded(0.000_123_456), 0.000_123_5);
    }
}

//! The result of one run: what was measured, beside its targets and peers; as a table or as JSON.
//!
//! ```text
//! Samples ─┐
//! Known   ─┴─▶ Run ──▶ table: median [low..high]  must  ok/MISS  × peer
//!                 └──▶ one JSON object, which `rhizome-bench report` reads back
//! ```

use std::io::{self, Write};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::machine::Facts;
use crate::samples::{self, Better, Bound, Figure, Samples, Series};

/// What is known of a figure before it is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Known {
    pub(crate) must: Option<Bound>,
    pub(crate) peer: Option<f64>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Run {
    /// The subcommand, or the part of the suite.
    pub(crate) name: String,
    /// Where the figures come from: name and text.
    pub(crate) facts: Vec<(String, String)>,
    /// The peer that `Row::peer` belongs to; empty when there is none.
    pub(crate) compared: String,
    /// One for each figure of each case and setup.
    pub(crate) rows: Vec<Row>,
    pub(crate) curves: Vec<Curve>,
}

/// One figure of one case through one setup.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Row {
    pub(crate) setup: String,
    pub(crate) case: String,
    pub(crate) figure: String,
    pub(crate) unit: String,
    pub(crate) better: Better,
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
}

/// The latencies of one case through one setup.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Curve {
    pub(crate) setup: String,
    pub(crate) case: String,
    /// Share of all operations (0 to 1), and the microseconds that it did not exceed.
    pub(crate) points: Vec<(f64, f64)>,
}

impl Run {
    /// Joins `samples` with what is `known` of each setup, case and figure.
    pub(crate) fn new(
        samples: &Samples,
        facts: &Facts,
        compared: &str,
        known: impl Fn(&str, &str, Figure) -> Known,
    ) -> Self {
        let command = facts.iter().find(|(name, _)| *name == "command");
        let name = command.and_then(|(_, text)| text.split(' ').nth(1));
        Self {
            name: name.unwrap_or("results").to_owned(),
            facts: facts
                .iter()
                .map(|(name, text)| ((*name).to_owned(), text.clone()))
                .collect(),
            compared: compared.to_owned(),
            rows: samples
                .series()
                .iter()
                .map(|one| Row::new(one, known(&one.setup, &one.case, one.figure)))
                .collect(),
            curves: samples.curves().iter().map(Curve::new).collect(),
        }
    }

    /// Returns the median without a proxy of the row's case and figure.
    pub(crate) fn direct(&self, row: &Row) -> Option<f64> {
        let same = |other: &&Row| {
            other.setup == DIRECT && other.case == row.case && other.figure == row.figure
        };
        let direct = self.rows.iter().find(same)?;
        (row.setup != DIRECT).then_some(direct.median)
    }

    /// Returns how many targets are held and how many are missed.
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
        writeln!(
            out,
            "\nmedian [lowest..highest]; direct: without a proxy, in this run"
        )?;
        if !self.compared.is_empty() {
            writeln!(out, "{TIMES}: how many times better than {}", self.compared)?;
        }
        let (held, missed) = self.judged();
        writeln!(out, "{held} targets held, {missed} missed")
    }
}

impl Row {
    fn new(series: &Series, known: Known) -> Self {
        let (low, high) = series.range();
        Self {
            setup: series.setup.clone(),
            case: series.case.clone(),
            figure: series.figure.name.to_owned(),
            unit: series.figure.unit.to_owned(),
            better: series.figure.better,
            median: rounded(series.median()),
            range: (low < high).then(|| (rounded(low), rounded(high))),
            count: series.count(),
            must: known.must,
            peer: known.peer.map(rounded),
            at: series.at.map(|at| (at.axis.to_owned(), at.value)),
        }
    }

    /// Returns whether the target is held, if there is one.
    pub(crate) fn holds(&self) -> Option<bool> {
        Some(self.must?.holds(self.median))
    }

    /// Returns how many times better the median is than the peer's, where that is defined.
    pub(crate) fn times(&self) -> Option<f64> {
        let times = match self.better {
            Better::Higher => self.median / self.peer?,
            Better::Lower => self.peer? / self.median,
        };
        (times.is_finite() && times > 0.0).then_some(times)
    }

    /// Returns the range of the repetitions as text; empty where all were equal.
    pub(crate) fn spread(&self) -> String {
        let spread = |(low, high)| format!("[{}..{}]", number(low), number(high));
        self.range.map(spread).unwrap_or_default()
    }

    pub(crate) fn high(&self) -> f64 {
        self.range.map_or(self.median, |(_, high)| high)
    }

    /// Returns the target as text; empty where there is none.
    pub(crate) fn target(&self) -> String {
        match self.must {
            Some(Bound::AtLeast(bound)) => format!("≥ {}", number(bound)),
            Some(Bound::AtMost(bound)) => format!("≤ {}", number(bound)),
            None => String::new(),
        }
    }

    /// Returns `ok` or `MISS`; empty where there is no target.
    pub(crate) fn verdict(&self) -> &'static str {
        match self.holds() {
            Some(true) => "ok",
            Some(false) => "MISS",
            None => "",
        }
    }

    /// Returns the cells of a table.
    pub(crate) fn cells(&self, direct: Option<f64>) -> [String; COLUMNS] {
        [
            self.setup.clone(),
            self.case.clone(),
            format!("{}, {}", self.figure, self.unit),
            number(self.median),
            self.spread(),
            direct.map(number).unwrap_or_default(),
            self.target(),
            self.verdict().to_owned(),
            self.times().map(number).unwrap_or_default(),
        ]
    }
}

impl Curve {
    fn new(curve: &samples::Curve) -> Self {
        let micros = |took: Duration| rounded(took.as_secs_f64() * 1e6);
        let points = curve.latencies.curve().into_iter();
        Self {
            setup: curve.setup.clone(),
            case: curve.case.clone(),
            points: points.map(|(share, took)| (share, micros(took))).collect(),
        }
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
pub(crate) const TIMES: &str = "× peer";
const COLUMNS: usize = 9;

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Figure = Figure::higher("rate", "per s");
    const TIME: Figure = Figure::lower("time", "s");

    fn run(samples: &Samples) -> Run {
        let facts = vec![("command", "rhizome-bench tls --rounds 3".to_owned())];
        Run::new(samples, &facts, "a peer", |setup, _, _| match setup {
            DIRECT => Known::default(),
            _ => Known {
                must: Some(Bound::AtLeast(30.0)),
                peer: Some(10.0),
            },
        })
    }

    #[test]
    fn table_shows_target_and_ceiling() {
        let mut samples = Samples::default();
        samples.add(DIRECT, "dials", RATE, 100.0);
        samples.add("proxy", "dials", RATE, 20.0);
        let mut table = Vec::new();
        run(&samples).table(&mut table).unwrap();
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
        let mut samples = Samples::default();
        for value in [41.123, 40.0, 42.0] {
            samples.add("proxy", "dials", RATE, value);
        }
        samples.add(DIRECT, "dials", TIME, 2.0);
        let text = serde_json::to_string(&run(&samples)).unwrap();
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
    fn ratio_follows_the_better_direction() {
        let mut samples = Samples::default();
        samples.add("proxy", "idle", TIME, 2.0);
        samples.add("proxy", "none", TIME, 0.0);
        let run = run(&samples);
        assert_eq!(run.rows[0].times(), Some(5.0));
        assert_eq!(run.rows[1].times(), None);
    }

    #[test]
    fn numbers_have_three_significant_digits() {
        let numbers = [0.0, 0.123_456, 1.5, 12.345, 123.456, 12_345.6, -0.5];
        assert_eq!(
            numbers.map(number),
            ["0", "0.123", "1.5", "12.3", "123", "12346", "-0.5"]
        );
        assert_eq!(rounded(12_345.678), 12_350.0);
        assert_eq!(rounded(0.000_123_456), 0.000_123_5);
    }
}

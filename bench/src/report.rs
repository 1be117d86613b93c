//! What was measured, as a table for people or as JSON lines for programs.
//!
//! ```text
//! Samples ─┐
//! Known   ─┴─▶ rows ──▶ table: median [low..high]  must  ok/MISS  × peer      or JSON lines
//! ```

use std::io::{self, Write};
use std::time::Duration;

use serde_json::json;

use crate::machine::Facts;
use crate::samples::{Better, Bound, Curve, Figure, Samples, Series};

/// What is known of a figure before it is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Known {
    /// What ours must hold.
    pub(crate) must: Option<Bound>,
    /// What a peer reached.
    pub(crate) peer: Option<f64>,
}

/// A result that can be written.
pub(crate) struct Report<'a> {
    /// The values.
    pub(crate) samples: &'a Samples,
    /// Where they come from.
    pub(crate) facts: &'a Facts,
    /// Looks up what is known of a setup's case and figure.
    pub(crate) known: &'a dyn Fn(&str, &str, Figure) -> Known,
    /// Whose values ours are compared with.
    pub(crate) compared: Compared,
}

/// Whose values ours are compared with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Compared {
    /// The table's column; empty when there is nobody.
    pub(crate) head: &'static str,
    /// The key of a line of JSON.
    pub(crate) key: &'static str,
    /// Whose they are, for the legend.
    pub(crate) legend: &'static str,
}

impl Report<'_> {
    /// Writes facts, table and legend.
    ///
    /// # Errors
    /// When `out` cannot be written to.
    pub(crate) fn table(&self, out: &mut impl Write) -> io::Result<()> {
        for (name, text) in self.facts {
            writeln!(out, "{name:13} {text}")?;
        }
        let mut head = HEAD.map(str::to_owned);
        if let Some(last) = head.last_mut() {
            self.compared.head.clone_into(last);
        }
        let mut rows = vec![head];
        rows.extend(self.samples.series().iter().map(|one| self.row(one)));
        let width = |column: usize| {
            let widths = rows.iter().map(|row| row[column].chars().count());
            widths.max().unwrap_or(0)
        };
        let widths: [usize; COLUMNS] = std::array::from_fn(width);
        writeln!(out)?;
        for row in &rows {
            let mut line = String::new();
            for (nth, (text, width)) in row.iter().zip(widths).enumerate() {
                let pad = " ".repeat(width - text.chars().count());
                let words = nth < 3;
                let (before, after) = if words { ("", &*pad) } else { (&*pad, "") };
                line.push_str(&format!("{before}{text}{after}  "));
            }
            writeln!(out, "{}", line.trim_end())?;
        }
        writeln!(
            out,
            "\nmedian [lowest..highest]; direct: with nothing between, in this run"
        )?;
        let Compared { head, legend, .. } = self.compared;
        if !head.is_empty() {
            writeln!(out, "{head}: how many times better than {legend}")?;
        }
        let (missed, held) = (self.missed(), self.held());
        writeln!(out, "{held} targets held, {missed} missed")
    }

    /// Writes one JSON object a line: the facts, then the figures.
    ///
    /// # Errors
    /// When `out` cannot be written to.
    pub(crate) fn json(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "{}", self.first_line())?;
        for one in self.samples.series() {
            let known = self.known(one);
            let (low, high) = one.range();
            let (at_least, at_most) = match known.must {
                Some(Bound::AtLeast(bound)) => (Some(bound), None),
                Some(Bound::AtMost(bound)) => (None, Some(bound)),
                None => (None, None),
            };
            let mut line = json!({
                "setup": one.setup,
                "case": one.case,
                "figure": one.figure.name,
                "unit": one.figure.unit,
                "better": match one.figure.better {
                    Better::Higher => "higher",
                    Better::Lower => "lower",
                },
                "at": one.at.map(|at| json!({ "axis": at.axis, "value": at.value })),
                "median": rounded(one.median()),
                "low": rounded(low),
                "high": rounded(high),
                "repetitions": one.count(),
                "values": one.values().iter().map(|value| rounded(*value)).collect::<Vec<_>>(),
                "direct": self.direct(one).map(rounded),
                "at_least": at_least,
                "at_most": at_most,
                "holds": known.must.map(|must| must.holds(one.median())),
            });
            line[self.compared.key] = json!(known.peer.map(rounded));
            writeln!(out, "{line}")?;
        }
        for one in self.samples.curves() {
            writeln!(out, "{}", curve_line(one))?;
        }
        Ok(())
    }

    /// The facts, and whom ours are compared with. A fact there are several of is one text.
    fn first_line(&self) -> serde_json::Value {
        let mut facts = serde_json::Map::new();
        for (name, text) in self.facts {
            let before = facts.get(*name).and_then(|before| before.as_str());
            let text = before.map_or_else(|| text.clone(), |before| format!("{before}; {text}"));
            facts.insert((*name).to_owned(), json!(text));
        }
        let Compared { head, key, legend } = self.compared;
        json!({ "facts": facts, "compared": { "head": head, "key": key, "legend": legend } })
    }

    /// Returns how many targets were missed.
    pub(crate) fn missed(&self) -> usize {
        self.judged().filter(|holds| !holds).count()
    }

    fn held(&self) -> usize {
        self.judged().filter(|holds| *holds).count()
    }

    fn judged(&self) -> impl Iterator<Item = bool> {
        let series = self.samples.series().iter();
        series.filter_map(|one| Some(self.known(one).must?.holds(one.median())))
    }

    fn row(&self, one: &Series) -> [String; COLUMNS] {
        let known = self.known(one);
        let (low, high) = one.range();
        let spread = if one.count() > 1 {
            format!("[{}..{}]", number(low), number(high))
        } else {
            String::new()
        };
        let (must, mark) = match known.must {
            None => (String::new(), ""),
            Some(must) => {
                let text = match must {
                    Bound::AtLeast(bound) => format!("≥ {}", number(bound)),
                    Bound::AtMost(bound) => format!("≤ {}", number(bound)),
                };
                (
                    text,
                    if must.holds(one.median()) {
                        "ok"
                    } else {
                        "MISS"
                    },
                )
            }
        };
        let peer = known.peer;
        let times = peer.and_then(|peer| times(one.figure.better, one.median(), peer));
        [
            one.setup.clone(),
            one.case.clone(),
            format!("{}, {}", one.figure.name, one.figure.unit),
            number(one.median()),
            spread,
            self.direct(one).map(number).unwrap_or_default(),
            must,
            mark.to_owned(),
            times.map(number).unwrap_or_default(),
        ]
    }

    fn known(&self, one: &Series) -> Known {
        (self.known)(&one.setup, &one.case, one.figure)
    }

    fn direct(&self, one: &Series) -> Option<f64> {
        if one.setup == DIRECT {
            return None;
        }
        self.samples.median(DIRECT, &one.case, one.figure)
    }
}

/// How latencies are spread: shares of all operations, and microseconds they did not exceed.
fn curve_line(one: &Curve) -> serde_json::Value {
    let curve = one.latencies.curve();
    let micros = |took: Duration| rounded(took.as_secs_f64() * 1e6);
    let points = curve
        .iter()
        .map(|(share, took)| json!([share, micros(*took)]));
    json!({
        "setup": one.setup,
        "case": one.case,
        "curve": "latency",
        "unit": "µs",
        "points": points.collect::<Vec<_>>(),
    })
}

/// Returns how many times better `value` is than a peer's, if that can be said: of nothing, and of
/// less than nothing, it cannot.
pub(crate) fn times(better: Better, value: f64, peer: f64) -> Option<f64> {
    let times = match better {
        Better::Higher => value / peer,
        Better::Lower => peer / value,
    };
    (times.is_finite() && times > 0.0).then_some(times)
}

/// A thousandth is finer than anything here is measured.
fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

/// Three digits that matter, more for large numbers.
pub(crate) fn number(value: f64) -> String {
    let decimals = match value.abs() {
        large if large >= 100.0 => 0,
        middle if middle >= 10.0 => 1,
        small if small >= 1.0 => 2,
        _ => 3,
    };
    let text = format!("{value:.decimals$}");
    if text.contains('.') {
        let short = text.trim_end_matches('0').trim_end_matches('.');
        return short.to_owned();
    }
    text
}

/// The setup with nothing between.
pub(crate) const DIRECT: &str = "direct";
const COLUMNS: usize = 9;
const HEAD: [&str; COLUMNS] = [
    "setup", "case", "figure", "median", "", "direct", "must", "", "",
];

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Figure = Figure {
        name: "rate",
        unit: "per s",
        better: Better::Higher,
    };

    fn known(setup: &str, _: &str, _: Figure) -> Known {
        if setup == DIRECT {
            return Known::default();
        }
        Known {
            must: Some(Bound::AtLeast(30.0)),
            peer: Some(10.0),
        }
    }

    fn written(samples: &Samples, json: bool) -> String {
        let report = Report {
            samples,
            facts: &vec![("kernel", "Linux".to_owned())],
            known: &known,
            compared: Compared {
                head: "× recorded",
                key: "recorded_elsewhere",
                legend: "a peer",
            },
        };
        let mut out = Vec::new();
        if json {
            report.json(&mut out).unwrap();
        } else {
            report.table(&mut out).unwrap();
        }
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_figure_stands_beside_its_target_and_the_ceiling() {
        let mut samples = Samples::default();
        samples.add(DIRECT, "dials", RATE, 100.0);
        samples.add("proxy", "dials", RATE, 20.0);
        let table = written(&samples, false);
        let line = table.lines().find(|line| line.contains("proxy")).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(
            words,
            [
                "proxy", "dials", "rate,", "per", "s", "20", "100", "≥", "30", "MISS", "2"
            ]
        );
        assert!(table.contains("0 targets held, 1 missed"), "{table}");
    }

    #[test]
    fn lines_of_json_say_the_same() {
        let mut samples = Samples::default();
        samples.add("proxy", "dials", RATE, 40.0);
        let text = written(&samples, true);
        let line: serde_json::Value = serde_json::from_str(text.lines().nth(1).unwrap()).unwrap();
        assert_eq!(line["median"], 40.0);
        assert_eq!(line["holds"], true);
        assert_eq!(line["recorded_elsewhere"], 10.0);
    }

    #[test]
    fn numbers_keep_three_digits() {
        let cases = [
            (1234.56, "1235"),
            (12.34, "12.3"),
            (1.204, "1.2"),
            (0.0617, "0.062"),
            (0.0, "0"),
        ];
        for (value, text) in cases {
            assert_eq!(number(value), text);
        }
    }
}

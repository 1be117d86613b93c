//! A run as it was saved: JSON lines, read back.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::samples::{Better, Bound};

/// Everything one run found.
#[derive(Clone, Debug, Default)]
pub(crate) struct Run {
    /// What it is called; its subcommand without a name.
    pub(super) name: Option<String>,
    /// Name and text, in the order of the page.
    pub(super) facts: Vec<(String, String)>,
    /// Whom ours are compared with: the head of the column, and who that is.
    pub(super) compared: Option<(String, String)>,
    /// One a figure.
    pub(super) rows: Vec<Row>,
    /// How latencies are spread.
    pub(super) curves: Vec<Curve>,
}

/// One figure of one case through one setup.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) setup: String,
    pub(super) case: String,
    pub(super) figure: String,
    pub(super) unit: String,
    pub(super) better: Better,
    pub(super) median: f64,
    pub(super) low: f64,
    pub(super) high: f64,
    pub(super) direct: Option<f64>,
    pub(super) must: Option<Bound>,
    pub(super) peer: Option<f64>,
    /// The axis along which this is one point, and where on it.
    pub(super) at: Option<(String, f64)>,
}

/// The latencies of one case through one setup.
#[derive(Clone, Debug)]
pub(super) struct Curve {
    pub(super) setup: String,
    pub(super) case: String,
    /// Share of all (0 to 1) and microseconds that it did not exceed.
    pub(super) points: Vec<(f64, f64)>,
}

impl Run {
    /// Reads the lines of one run.
    ///
    /// # Errors
    /// When a line is something else; the text names it.
    pub(crate) fn parse(lines: &str) -> Result<Self> {
        let mut run = Self::default();
        let mut key = String::new();
        for (nth, line) in lines.lines().enumerate() {
            let line: Value =
                serde_json::from_str(line).with_context(|| format!("line {}", nth + 1))?;
            if line.get("facts").is_some() {
                ensure!(
                    run.facts.is_empty(),
                    "line {}: a second run begins",
                    nth + 1
                );
                run.facts = facts(&line);
                let compared = &line["compared"];
                key = text(compared, "key").unwrap_or_default();
                let head = text(compared, "head").filter(|head| !head.is_empty());
                run.compared = head.zip(text(compared, "legend"));
            } else if line.get("points").is_some() {
                let curve = curve(&line).with_context(|| format!("line {}", nth + 1))?;
                run.curves.push(curve);
            } else {
                let row = row(&line, &key).with_context(|| format!("line {}", nth + 1))?;
                run.rows.push(row);
            }
        }
        ensure!(!run.facts.is_empty(), "no line tells the facts of the run");
        Ok(run)
    }

    /// Returns what a fact says.
    pub(super) fn fact(&self, name: &str) -> Option<&str> {
        let found = self.facts.iter().find(|(fact, _)| fact == name);
        found.map(|(_, text)| text.as_str())
    }

    /// Returns what the run is called.
    pub(super) fn title(&self) -> &str {
        if let Some(name) = &self.name {
            return name;
        }
        let command = self.fact("command").unwrap_or_default();
        command.split_whitespace().nth(1).unwrap_or("results")
    }

    /// Returns the setups in the order in which they were measured, the ceiling first.
    pub(super) fn setups(&self) -> Vec<&str> {
        let mut setups: Vec<&str> = Vec::new();
        let rows = self.rows.iter().map(|row| row.setup.as_str());
        for setup in rows.chain(self.curves.iter().map(|curve| curve.setup.as_str())) {
            if !setups.contains(&setup) {
                setups.push(setup);
            }
        }
        setups
    }

    /// Tells whether `row` is a point of a line: the same figure is there at another place.
    pub(super) fn is_point(&self, row: &Row) -> bool {
        let Some((axis, place)) = &row.at else {
            return false;
        };
        self.rows.iter().any(|other| {
            let at = other.at.as_ref();
            other.figure == row.figure && at.is_some_and(|(of, at)| of == axis && at != place)
        })
    }

    /// Returns how many targets were held and how many missed.
    pub(super) fn judged(&self) -> (usize, usize) {
        let judged = |row: &Row| Some(row.must?.holds(row.median));
        let all: Vec<bool> = self.rows.iter().filter_map(judged).collect();
        let held = all.iter().filter(|holds| **holds).count();
        (held, all.len() - held)
    }
}

fn facts(line: &Value) -> Vec<(String, String)> {
    let object = line["facts"].as_object();
    let pairs = object.into_iter().flatten();
    let mut facts: Vec<(String, String)> = pairs
        .map(|(name, text)| (name.clone(), text.as_str().unwrap_or_default().to_owned()))
        .collect();
    let place = |name: &str| {
        FIRST
            .iter()
            .position(|first| *first == name)
            .unwrap_or(FIRST.len())
    };
    facts.sort_by_key(|(name, _)| place(name));
    facts
}

fn row(line: &Value, peer: &str) -> Result<Row> {
    let word = |key: &str| text(line, key).with_context(|| format!("{key:?} is missing"));
    let number = |key: &str| line[key].as_f64();
    let median = number("median").context("\"median\" is missing")?;
    let at_least = number("at_least").map(Bound::AtLeast);
    let at = &line["at"];
    Ok(Row {
        setup: word("setup")?,
        case: word("case")?,
        figure: word("figure")?,
        unit: word("unit")?,
        better: match line["better"].as_str() {
            Some("higher") => Better::Higher,
            _ => Better::Lower,
        },
        median,
        low: number("low").unwrap_or(median),
        high: number("high").unwrap_or(median),
        direct: number("direct"),
        must: at_least.or_else(|| number("at_most").map(Bound::AtMost)),
        peer: number(peer),
        at: text(at, "axis").zip(at["value"].as_f64()),
    })
}

fn curve(line: &Value) -> Result<Curve> {
    let word = |key: &str| text(line, key).with_context(|| format!("{key:?} is missing"));
    let pairs = line["points"].as_array().into_iter().flatten();
    let point = |pair: &Value| Some((pair[0].as_f64()?, pair[1].as_f64()?));
    Ok(Curve {
        setup: word("setup")?,
        case: word("case")?,
        points: pairs.filter_map(point).collect(),
    })
}

fn text(value: &Value, key: &str) -> Option<String> {
    value[key].as_str().map(str::to_owned)
}

const FIRST: [&str; 8] = [
    "command",
    "date",
    "commit",
    "bench",
    "cpu",
    "memory",
    "kernel",
    "load average",
];

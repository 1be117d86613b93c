//! Bars: one plot a case and figure, the setups below each other, with spread and target.

use std::fmt::Write;

use super::plot::{Scale, cut, escape, is_ours};
use super::saved::{Row, Run};
use crate::report::{DIRECT, number};
use crate::samples::{Better, Bound};

/// Returns all plots, a heading for each case. Figures of one setup alone stand in the table only,
/// and those along an axis have their own plots.
pub(super) fn all(run: &Run) -> String {
    let mut cases: Vec<&str> = Vec::new();
    for row in run.rows.iter().filter(|row| !run.is_point(row)) {
        if !cases.contains(&row.case.as_str()) {
            cases.push(&row.case);
        }
    }
    let mut html = String::new();
    for case in cases {
        let plots = plots(run, case);
        if !plots.is_empty() {
            // Writing to a string does not fail.
            let _ = writeln!(
                html,
                "<h3>{}</h3>\n<div class=\"plots\">{plots}</div>",
                escape(case)
            );
        }
    }
    html
}

fn plots(run: &Run, case: &str) -> String {
    let of_case: Vec<&Row> = run
        .rows
        .iter()
        .filter(|row| row.case == case && !run.is_point(row))
        .collect();
    let mut figures: Vec<&str> = Vec::new();
    for row in &of_case {
        if !figures.contains(&row.figure.as_str()) {
            figures.push(&row.figure);
        }
    }
    let setups = run.setups();
    let mut html = String::new();
    for figure in figures {
        let rows: Vec<&Row> = of_case
            .iter()
            .filter(|row| row.figure == figure)
            .copied()
            .collect();
        if rows.len() > 1 && rows.iter().any(|row| row.high > 0.0) {
            html.push_str(&plot(&rows, &setups));
        }
    }
    html
}

fn plot(rows: &[&Row], setups: &[&str]) -> String {
    let Some(first) = rows.first() else {
        return String::new();
    };
    let scale = Scale::from_zero(rows.iter().map(|row| row.high), LABELS, WIDTH - VALUES);
    let height = rows.len() as f64 * ROW + 2.0;
    let mut bars = String::new();
    for (nth, row) in rows.iter().enumerate() {
        bars.push_str(&bar(
            row,
            nth as f64 * ROW,
            scale,
            is_ours(&row.setup, setups),
        ));
    }
    let better = match first.better {
        Better::Higher => "more is better",
        Better::Lower => "less is better",
    };
    let title = format!("{}, {}", first.figure, first.unit);
    format!(
        "<figure><figcaption>{}<small>{better}</small></figcaption>\
         <svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\">{bars}</svg></figure>\n",
        escape(&title),
        escape(&title),
    )
}

/// One row: name, bar, range, target, number.
fn bar(row: &Row, top: f64, scale: Scale, ours: bool) -> String {
    let class = match (row.setup == DIRECT, ours) {
        (true, _) => "direct",
        (false, true) => "ours",
        (false, false) => "peer",
    };
    let (zero, end) = (scale.at(0.0), scale.at(row.median));
    let (low, high) = (scale.at(row.low), scale.at(row.high));
    let middle = top + ROW / 2.0;
    let text = middle + 4.0;
    let mut svg = format!(
        "<g class=\"{class}\"><title>{}: {} [{}..{}] {}</title>\
         <text class=\"name\" x=\"{:.1}\" y=\"{text:.1}\">{}</text>\
         <rect x=\"{zero:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" rx=\"1.5\"/>",
        escape(&row.setup),
        number(row.median),
        number(row.low),
        number(row.high),
        escape(&row.unit),
        LABELS - 6.0,
        escape(&cut(&row.setup, NAME)),
        top + 3.0,
        (end - zero).max(0.8),
        ROW - 6.0,
    );
    if row.high > row.low {
        let _ = write!(
            svg,
            "<path class=\"range\" d=\"M{low:.1} {middle:.1}H{high:.1}M{low:.1} {:.1}v5M{high:.1} {:.1}v5\"/>",
            middle - 2.5,
            middle - 2.5
        );
    }
    let mut mark = "";
    let mut number_at = end.max(high);
    if let Some(must) = row.must {
        let (Bound::AtLeast(bound) | Bound::AtMost(bound)) = must;
        let x = scale.at(bound);
        // The number stands behind a target that would run through it.
        if x > number_at && x < number_at + NUMBER {
            number_at = x;
        }
        let _ = write!(
            svg,
            "<path class=\"must\" d=\"M{x:.1} {:.1}v{:.1}\"/>",
            top + 1.0,
            ROW - 2.0
        );
        mark = if must.holds(row.median) { "" } else { " ✗" };
    }
    let _ = write!(
        svg,
        "<text class=\"value\" x=\"{:.1}\" y=\"{text:.1}\">{}{mark}</text></g>",
        number_at + 5.0,
        number(row.median)
    );
    svg
}

/// Pixels of a plot's own space; the page scales it.
const WIDTH: f64 = 380.0;
const LABELS: f64 = 132.0;
const VALUES: f64 = 56.0;
const ROW: f64 = 20.0;
const NUMBER: f64 = 44.0;
/// Characters of a setup's name that fit.
const NAME: usize = 21;

//! Lines: latencies by percentile, and figures along an axis, a line for each setup.

use std::fmt::Write;

use super::plot::{Scale, escape, is_ours, short};
use super::saved::{Row, Run};
use crate::report::DIRECT;

/// One line of a plot.
struct Line<'a> {
    setup: &'a str,
    points: Vec<(f64, f64)>,
}

/// One plot: its words and scales are ready.
struct Plot<'a> {
    title: String,
    lines: Vec<Line<'a>>,
    x: Scale,
    y: Scale,
    /// Where on the x axis, and what it says there.
    marks: Vec<(f64, String)>,
    dots: bool,
}

/// Returns a plot for each case whose latencies were kept.
pub(super) fn latencies(run: &Run) -> String {
    let mut cases: Vec<&str> = Vec::new();
    for curve in &run.curves {
        if !cases.contains(&curve.case.as_str()) {
            cases.push(&curve.case);
        }
    }
    let setups = run.setups();
    let plots = cases.into_iter().map(|case| {
        let lines: Vec<Line<'_>> = run
            .curves
            .iter()
            .filter(|curve| curve.case == case)
            .map(|curve| Line {
                setup: &curve.setup,
                points: by_nines(&curve.points),
            })
            .collect();
        let all = || lines.iter().flat_map(|line| &line.points);
        let most = all().map(|(nines, _)| *nines).fold(1.0, f64::max);
        let x = Scale::from_zero(std::iter::once(most), LEFT, RIGHT);
        let y = Scale::log(all().map(|(_, us)| *us), BOTTOM, TOP);
        let marks = SHARES.iter().filter(|(share, _)| nines(*share) <= most);
        let marks = marks
            .map(|(share, text)| (nines(*share), (*text).to_owned()))
            .collect();
        let title = format!("{case}, µs by percentile");
        draw(
            &Plot {
                title,
                lines,
                x,
                y,
                marks,
                dots: false,
            },
            &setups,
        )
    });
    plots.collect()
}

/// Returns a plot for each figure that was measured at several places of an axis.
pub(super) fn along(run: &Run) -> String {
    let mut kinds: Vec<(&str, &str, &str)> = Vec::new();
    for row in run.rows.iter().filter(|row| run.is_point(row)) {
        if let Some((axis, _)) = &row.at {
            let kind = (axis.as_str(), row.figure.as_str(), row.unit.as_str());
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
    }
    let setups = run.setups();
    let plots = kinds.into_iter().filter_map(|(axis, figure, unit)| {
        let of_kind =
            |row: &&Row| row.figure == figure && row.at.as_ref().is_some_and(|(of, _)| of == axis);
        let rows: Vec<&Row> = run.rows.iter().filter(of_kind).collect();
        if rows.iter().all(|row| row.median == 0.0) {
            return None;
        }
        let lines: Vec<Line<'_>> = setups
            .iter()
            .map(|setup| Line {
                setup,
                points: points(rows.iter().filter(|row| row.setup == *setup)),
            })
            .filter(|line| !line.points.is_empty())
            .collect();
        let places: Vec<f64> = lines
            .iter()
            .flat_map(|line| line.points.iter().map(|(at, _)| *at))
            .collect();
        let values = || {
            lines
                .iter()
                .flat_map(|line| line.points.iter().map(|(_, value)| *value))
        };
        let x = Scale::log(places.iter().copied(), LEFT + PAD, RIGHT - PAD);
        let y = axis_of(values);
        let mut marks: Vec<f64> = places;
        marks.sort_by(f64::total_cmp);
        marks.dedup();
        let marks = marks.into_iter().map(|at| (at, short(at))).collect();
        let title = format!("{figure}, {unit}, by {axis}");
        Some(draw(
            &Plot {
                title,
                lines,
                x,
                y,
                marks,
                dots: true,
            },
            &setups,
        ))
    });
    plots.collect()
}

/// Puts the longest a little behind the last share that is less than all.
fn by_nines(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mut last = 0.0;
    points
        .iter()
        .map(|(share, micros)| {
            last = if *share < 1.0 {
                nines(*share)
            } else {
                last + LONGEST
            };
            (last, *micros)
        })
        .collect()
}

fn points<'a>(rows: impl Iterator<Item = &'a &'a Row>) -> Vec<(f64, f64)> {
    let mut points: Vec<(f64, f64)> = rows
        .filter_map(|row| Some((row.at.as_ref()?.1, row.median)))
        .collect();
    points.sort_by(|one, other| one.0.total_cmp(&other.0));
    points
}

/// Logarithmic when the values are far apart, from zero otherwise.
fn axis_of<I: Iterator<Item = f64>>(values: impl Fn() -> I) -> Scale {
    let (low, high) = values().fold((f64::MAX, 0.0), |(low, high): (f64, f64), value| {
        (low.min(value), high.max(value))
    });
    if low > 0.0 && high / low > FAR_APART {
        Scale::log(values(), BOTTOM, TOP)
    } else {
        Scale::from_zero(values(), BOTTOM, TOP)
    }
}

fn draw(plot: &Plot<'_>, setups: &[&str]) -> String {
    let title = escape(&plot.title);
    let mut svg = String::new();
    // Writing to a string does not fail.
    for tick in plot.y.ticks() {
        let y = plot.y.at(tick);
        let _ = write!(
            svg,
            "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{RIGHT}\"/>\
             <text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 5.0,
            y + 3.5,
            short(tick)
        );
    }
    let mut free = f64::MIN;
    for (at, text) in &plot.marks {
        let x = plot.x.at(*at);
        if x < free {
            continue;
        }
        free = x + MARK;
        let _ = write!(
            svg,
            "<path class=\"grid\" d=\"M{x:.1} {TOP}V{BOTTOM}\"/>\
             <text class=\"tick\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{text}</text>",
            BOTTOM + 15.0
        );
    }
    let mut legend = String::new();
    for line in &plot.lines {
        let class = class_of(line.setup, setups);
        svg.push_str(&path(plot, line, &class));
        let _ = write!(
            legend,
            "<li class=\"{class}\"><svg viewBox=\"0 0 24 8\" aria-hidden=\"true\">\
             <path d=\"M1 4H23\"/></svg>{}</li>",
            escape(line.setup)
        );
    }
    format!(
        "<figure><figcaption>{title}</figcaption>\
         <svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{title}\">{svg}</svg>\
         <ul class=\"legend\">{legend}</ul></figure>\n"
    )
}

fn path(plot: &Plot<'_>, line: &Line<'_>, class: &str) -> String {
    let mut steps = String::new();
    let mut dots = String::new();
    for (nth, (x, y)) in line.points.iter().enumerate() {
        let word = if nth == 0 { 'M' } else { 'L' };
        let (x, y) = (plot.x.at(*x), plot.y.at(*y));
        let _ = write!(steps, "{word}{x:.1} {y:.1}");
        if plot.dots {
            let _ = write!(dots, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.6\"/>");
        }
    }
    let name = escape(line.setup);
    format!("<g class=\"line {class}\"><title>{name}</title><path d=\"{steps}\"/>{dots}</g>")
}

/// Ours is one color, the ceiling grey, and the others each their own, dashed from the seventh on.
fn class_of(setup: &str, setups: &[&str]) -> String {
    if setup == DIRECT {
        return "direct".to_owned();
    }
    let ours = is_ours(setup, setups);
    let mut same = setups
        .iter()
        .filter(|other| **other != DIRECT && is_ours(other, setups) == ours);
    let nth = same.position(|other| *other == setup).unwrap_or(0);
    let word = if ours { "ours" } else { "peer" };
    let colours = if ours { OUR_COLOURS } else { COLOURS };
    let dashed = ["", " dashed", " dotted"];
    let dash = dashed.get(nth / colours).copied().unwrap_or(" dotted");
    format!("{word} c{}{dash}", nth % colours)
}

/// Turns a share into how many nines it has: 0.99 is 2.
fn nines(share: f64) -> f64 {
    -(1.0 - share).max(1e-9).log10()
}

const SHARES: [(f64, &str); 6] = [
    (0.5, "50"),
    (0.9, "90"),
    (0.99, "99"),
    (0.999, "99.9"),
    (0.9999, "99.99"),
    (0.99999, "99.999"),
];

/// Pixels of a plot's own space; the page scales it.
const WIDTH: f64 = 380.0;
const HEIGHT: f64 = 224.0;
const LEFT: f64 = 44.0;
const RIGHT: f64 = 370.0;
const TOP: f64 = 8.0;
const BOTTOM: f64 = 200.0;
const PAD: f64 = 10.0;
const FAR_APART: f64 = 12.0;
/// Between two marks of the x axis.
const MARK: f64 = 30.0;
const LONGEST: f64 = 0.2;
/// As many as the page's style has.
const COLOURS: usize = 6;
const OUR_COLOURS: usize = 3;

//! Plots of a run: lines as SVG, and what bars show.

use anyhow::{Result, anyhow};
use plotters::prelude::*;
use serde_json::{Value, json};

use crate::report::{Bound, DIRECT, Row, Run, number};

pub(super) fn along(run: &Run) -> Result<Vec<String>> {
    let along = unique(run.rows.iter().filter_map(|row| {
        let (axis, _) = row.at.as_ref()?;
        Some((axis, &row.figure, &row.unit))
    }));
    let along = along.into_iter().map(|(axis, figure, unit)| {
        let points = run.rows.iter().filter_map(|row| {
            let (of, place) = row.at.as_ref()?;
            (of == axis && &row.figure == figure).then_some((&*row.setup, (*place, row.median)))
        });
        lines(&format!("{figure}, {unit}, by {axis}"), points, number)
    });
    along.collect()
}

pub(super) fn latencies(run: &Run) -> Result<Vec<String>> {
    let cases = unique(run.curves.iter().map(|curve| &curve.case));
    let latencies = cases.into_iter().map(|case| {
        let curves = run.curves.iter().filter(|curve| &curve.case == case);
        let points = curves.flat_map(|curve| {
            let points = curve.points.iter().filter(|(share, _)| *share < 1.0);
            points.map(|(share, micros)| (&*curve.setup, (1.0 / (1.0 - share), *micros)))
        });
        lines(&format!("{case}: µs by percentile"), points, percentile)
    });
    latencies.collect()
}

/// Returns what several setups have of each figure; lengths are percent of the width.
pub(super) fn bars(run: &Run) -> Vec<Value> {
    let rows = run.rows.iter();
    let figures = unique(rows.map(|row| (&row.case, &row.figure, &row.unit)));
    let bars = figures.into_iter().filter_map(|(case, figure, unit)| {
        let same = |row: &&Row| &row.case == case && &row.figure == figure && row.at.is_none();
        let rows: Vec<&Row> = run.rows.iter().filter(same).collect();
        let value = |(Bound::AtLeast(bound) | Bound::AtMost(bound))| bound;
        let bound = |row: &Row| row.must.map(value);
        let longest = rows.iter().map(|row| row.high()).fold(0.0, f64::max);
        let bounds = rows.iter().filter_map(|row| bound(row));
        let high = bounds.fold(longest, f64::max);
        let percent = |value: f64| value / high * 100.0;
        let bar = |row: &&Row| {
            let (low, end) = row.range.unwrap_or((row.median, row.median));
            json!({
                "setup": row.setup, "verdict": row.verdict(), "text": number(row.median),
                "long": percent(row.median), "low": percent(low), "spread": percent(end - low),
                "bound": bound(row).map(percent),
            })
        };
        (rows.len() > 1 && longest > 0.0).then(|| {
            let bars: Vec<Value> = rows.iter().map(bar).collect();
            json!({ "title": format!("{case}: {figure}, {unit}"), "bars": bars })
        })
    });
    bars.collect()
}

/// Draws one line for each setup over logarithmic axes; what is zero is left out.
fn lines<'a>(
    title: &str,
    points: impl Iterator<Item = (&'a str, (f64, f64))>,
    label: fn(f64) -> String,
) -> Result<String> {
    let points: Vec<_> = points.filter(|(_, (x, y))| *x > 0.0 && *y > 0.0).collect();
    let mut svg = String::new();
    if !points.is_empty() {
        // An error of the library is not `Sync`.
        draw(&mut svg, title, &points, label).map_err(|error| anyhow!("drawing: {error}"))?;
    }
    Ok(svg)
}

fn draw(
    svg: &mut String,
    title: &str,
    points: &[(&str, (f64, f64))],
    label: fn(f64) -> String,
) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let around = |values: &dyn Fn(&(f64, f64)) -> f64| {
        let values = points.iter().map(|(_, point)| values(point));
        let (low, high) = values.fold((f64::MAX, f64::MIN_POSITIVE), |(low, high), value| {
            (low.min(value), high.max(value))
        });
        (low / 1.1..high * 1.1).log_scale()
    };
    let area = SVGBackend::with_string(svg, (400, 260)).into_drawing_area();
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 13))
        .margin(6)
        .set_label_area_size(LabelAreaPosition::Left, 50)
        .set_label_area_size(LabelAreaPosition::Bottom, 24)
        .build_cartesian_2d(around(&|(x, _)| *x), around(&|(_, y)| *y))?;
    let (x_label, y_label) = (|at: &f64| label(*at), |value: &f64| number(*value));
    let mesh = &mut chart.configure_mesh();
    mesh.x_label_formatter(&x_label).y_label_formatter(&y_label);
    mesh.light_line_style(TRANSPARENT).label_style(LABEL);
    mesh.draw()?;
    let setups = unique(points.iter().map(|(setup, _)| *setup));
    for (nth, setup) in setups.into_iter().enumerate() {
        let of_setup = points.iter().filter(|(of, _)| *of == setup);
        let style = color(setup, nth).stroke_width(2);
        let line = LineSeries::new(of_setup.map(|(_, point)| *point), style);
        let line = chart.draw_series(line)?.label(setup);
        line.legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], style));
    }
    let legend = &mut chart.configure_series_labels();
    legend.position(SeriesLabelPosition::UpperLeft);
    legend.background_style(WHITE.mix(0.7)).label_font(LABEL);
    legend.draw()?;
    drop(chart);
    Ok(area.present()?)
}

/// Lines of our setups are green, the ceiling's is gray, and each other one has a color of its own.
fn color(setup: &str, nth: usize) -> RGBAColor {
    match setup {
        DIRECT => RGBColor(150, 150, 140).to_rgba(),
        "rhizome" | "rhizome udp" => RGBColor(11, 122, 83).to_rgba(),
        _ => Palette99::pick(nth).to_rgba(),
    }
}

/// 100 operations for each that took longer is the 99th percentile.
fn percentile(at: f64) -> String {
    format!("{}", 100.0 - (1e6 / at).round() / 1e4)
}

fn unique<T: PartialEq>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut unique = Vec::new();
    for item in items {
        if !unique.contains(&item) {
            unique.push(item);
        }
    }
    unique
}

const LABEL: (&str, u32) = ("sans-serif", 11);

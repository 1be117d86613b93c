//! Plots of a run, as SVG.

use std::fmt::Display;

use anyhow::{Result, anyhow};
use plotters::coord::ranged1d::SegmentValue;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::report::{Bound, DIRECT, Row, Run, number};

/// Returns every plot of `run`: figures along an axis, bars of what several setups have, latencies.
pub(super) fn all(run: &Run) -> Result<Vec<String>> {
    let along = unique(run.rows.iter().filter_map(|row| {
        let (axis, _) = row.at.as_ref()?;
        Some((axis, &row.figure, &row.unit))
    }));
    let along = along.into_iter().map(|(axis, figure, unit)| {
        let points = run.rows.iter().filter_map(|row| {
            let (of, place) = row.at.as_ref()?;
            (of == axis && &row.figure == figure).then_some((&*row.setup, (*place, row.median)))
        });
        lines(&format!("{figure}, {unit}, by {axis}"), points, &|at| {
            number(*at)
        })
    });
    let bars = unique(run.rows.iter().map(|row| (&row.case, &row.figure)));
    let bars = bars.into_iter().filter_map(|(case, figure)| {
        let rows = run.rows.iter();
        let rows: Vec<&Row> = rows
            .filter(|row| &row.case == case && &row.figure == figure && row.at.is_none())
            .collect();
        (rows.len() > 1 && rows.iter().any(|row| row.high() > 0.0)).then(|| bars_of(&rows))
    });
    let cases = unique(run.curves.iter().map(|curve| &curve.case));
    let latencies = cases.into_iter().map(|case| {
        let curves = run.curves.iter().filter(|curve| &curve.case == case);
        let points = curves.flat_map(|curve| {
            let points = curve.points.iter().filter(|(share, _)| *share < 1.0);
            points.map(|(share, micros)| (&*curve.setup, (1.0 / (1.0 - share), *micros)))
        });
        lines(&format!("{case}: µs by percentile"), points, &|at| {
            number_of_nines(*at)
        })
    });
    along.chain(bars).chain(latencies).collect()
}

fn bars_of(rows: &[&Row]) -> Result<String> {
    let bound = |row: &&Row| match row.must {
        Some(Bound::AtLeast(bound) | Bound::AtMost(bound)) => Some(bound),
        None => None,
    };
    let bounds = rows.iter().filter_map(bound);
    let high = rows.iter().map(|row| row.high()).chain(bounds);
    let high = high.fold(0.0, f64::max) * 1.25;
    let title = rows.first().map_or_else(String::new, |row| {
        format!("{}: {}, {}", row.case, row.figure, row.unit)
    });
    let last = rows.len() - 1;
    draw(44 + 20 * u32::try_from(rows.len())?, |area| {
        let mut chart = ChartBuilder::on(area)
            .caption(&title, TITLE)
            .margin(6)
            .set_label_area_size(LabelAreaPosition::Left, 140)
            .build_cartesian_2d(0.0..high, (0..last).into_segmented())?;
        let setup = |segment: &SegmentValue<usize>| match segment {
            SegmentValue::CenterOf(nth) => rows[last - nth].setup.clone(),
            SegmentValue::Exact(_) | SegmentValue::Last => String::new(),
        };
        let mesh = &mut chart.configure_mesh();
        mesh.disable_mesh().disable_x_axis().y_labels(rows.len());
        mesh.y_label_formatter(&setup).label_style(LABEL).draw()?;
        for (nth, row) in rows.iter().rev().enumerate() {
            let (bottom, middle) = (SegmentValue::Exact(nth), SegmentValue::CenterOf(nth));
            let top = match nth {
                nth if nth == last => SegmentValue::Last,
                nth => SegmentValue::Exact(nth + 1),
            };
            let corners = [(0.0, bottom.clone()), (row.median, top.clone())];
            let mut bar = Rectangle::new(corners, color(&row.setup, nth).mix(0.6).filled());
            bar.set_margin(2, 2, 0, 0);
            chart.draw_series([bar])?;
            if let Some((low, high)) = row.range {
                let range = [(low, middle.clone()), (high, middle.clone())];
                chart.draw_series([PathElement::new(range, BLACK)])?;
            }
            if let Some(bound) = bound(row) {
                let mark = [(bound, bottom), (bound, top)];
                chart.draw_series([PathElement::new(mark, RED.stroke_width(2))])?;
            }
            let text = format!(" {} {}", number(row.median), row.verdict());
            let style = LABEL.into_text_style(area);
            let style = style.pos(Pos::new(HPos::Left, VPos::Center));
            chart.draw_series([Text::new(text, (row.high(), middle), style)])?;
        }
        Ok(())
    })
}

/// Draws one line for each setup over logarithmic axes; what is zero is left out.
fn lines<'a>(
    title: &str,
    points: impl Iterator<Item = (&'a str, (f64, f64))>,
    label: &dyn Fn(&f64) -> String,
) -> Result<String> {
    let points: Vec<_> = points.filter(|(_, (x, y))| *x > 0.0 && *y > 0.0).collect();
    let around = |values: &dyn Fn(&(f64, f64)) -> f64| {
        let values = points.iter().map(|(_, point)| values(point));
        let (low, high) = values.fold((f64::MAX, f64::MIN_POSITIVE), |(low, high), value| {
            (low.min(value), high.max(value))
        });
        low / 1.1..high * 1.1
    };
    if points.is_empty() {
        return Ok(String::new());
    }
    draw(260, |area| {
        let mut chart = ChartBuilder::on(area)
            .caption(title, TITLE)
            .margin(6)
            .set_label_area_size(LabelAreaPosition::Left, 50)
            .set_label_area_size(LabelAreaPosition::Bottom, 24)
            .build_cartesian_2d(
                around(&|(x, _)| *x).log_scale(),
                around(&|(_, y)| *y).log_scale(),
            )?;
        let mesh = &mut chart.configure_mesh();
        mesh.x_label_formatter(label)
            .y_label_formatter(&|value| number(*value));
        mesh.light_line_style(TRANSPARENT)
            .label_style(LABEL)
            .draw()?;
        for (nth, setup) in unique(points.iter().map(|(setup, _)| *setup))
            .into_iter()
            .enumerate()
        {
            let of_setup = points.iter().filter(|(of, _)| *of == setup);
            let style = color(setup, nth).stroke_width(2);
            let line = LineSeries::new(of_setup.map(|(_, point)| *point), style);
            chart
                .draw_series(line)?
                .label(setup)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], style));
        }
        let legend = &mut chart.configure_series_labels();
        legend.position(SeriesLabelPosition::UpperLeft);
        legend
            .background_style(WHITE.mix(0.7))
            .label_font(LABEL)
            .draw()?;
        Ok(())
    })
}

fn draw(
    height: u32,
    work: impl FnOnce(&DrawingArea<SVGBackend<'_>, plotters::coord::Shift>) -> Drawn,
) -> Result<String> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        // An error of the library is not `Sync`.
        let failed = |error: &dyn Display| anyhow!("drawing: {error}");
        work(&area).map_err(|error| failed(&error))?;
        area.present().map_err(|error| failed(&error))?;
    }
    Ok(svg)
}

/// Our setups are green, the ceiling is gray, and each other one has a color of its own.
fn color(setup: &str, nth: usize) -> RGBAColor {
    match setup {
        DIRECT => RGBColor(150, 150, 140).to_rgba(),
        "rhizome" | "rhizome udp" | "ours" => RGBColor(11, 122, 83).to_rgba(),
        _ => Palette99::pick(nth).to_rgba(),
    }
}

/// 100 operations for each that took longer is the 99th percentile.
fn number_of_nines(at: f64) -> String {
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

type Drawn = Result<(), Box<dyn std::error::Error>>;

const WIDTH: u32 = 400;
const TITLE: (&str, u32) = ("sans-serif", 13);
const LABEL: (&str, u32) = ("sans-serif", 11);

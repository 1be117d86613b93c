//! What all plots are made of: scales, ticks, numbers as text, colors.

use crate::report::DIRECT;

/// Where values go on a line of `from` to `to` pixels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    low: f64,
    high: f64,
    log: bool,
    from: f64,
    to: f64,
}

impl Scale {
    /// Makes a scale of zero to a little above the highest of `values`.
    pub(super) fn from_zero(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let high = values.fold(0.0, f64::max);
        Self {
            low: 0.0,
            high: if high > 0.0 { high * 1.04 } else { 1.0 },
            log: false,
            from,
            to,
        }
    }

    /// Makes a logarithmic scale of the lowest to the highest of `values`, which are above zero.
    pub(super) fn log(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let (mut low, mut high) = (f64::MAX, f64::MIN_POSITIVE);
        for value in values.filter(|value| *value > 0.0) {
            (low, high) = (low.min(value), high.max(value));
        }
        if low >= high {
            (low, high) = (high / 2.0, high * 2.0);
        }
        Self {
            low: low / 1.08,
            high: high * 1.08,
            log: true,
            from,
            to,
        }
    }

    /// Returns where `value` is, in pixels; at the nearer end when it is outside.
    pub(super) fn at(&self, value: f64) -> f64 {
        let share = if self.log {
            (value.max(self.low) / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        self.from + share.clamp(0.0, 1.0) * (self.to - self.from)
    }

    /// Returns round numbers for the scale, a handful.
    pub(super) fn ticks(&self) -> Vec<f64> {
        if self.log {
            let decades = (self.high / self.low).log10();
            let steps: &[f64] = if decades > 2.5 {
                &[1.0]
            } else {
                &[1.0, 2.0, 5.0]
            };
            let (first, last) = (
                self.low.log10().floor() as i32,
                self.high.log10().ceil() as i32,
            );
            let all = (first..=last)
                .flat_map(|power| steps.iter().map(move |step| step * 10_f64.powi(power)));
            return all
                .filter(|tick| (self.low..=self.high).contains(tick))
                .collect();
        }
        let rough = (self.high - self.low) / 4.0;
        let power = 10_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0]
            .map(|factor| factor * power)
            .into_iter()
            .find(|step| *step >= rough)
            .unwrap_or(power * 10.0);
        let count = ((self.high - self.low) / step).floor() as u32;
        (0..=count)
            .map(|nth| self.low + f64::from(nth) * step)
            .collect()
    }
}

/// Returns text that means itself in HTML.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            other => out.push(other),
        }
    }
    out
}

/// Returns a tick's number, short: 1500 is 1.5k.
pub(super) fn short(value: f64) -> String {
    for (unit, word) in [(1e9, "G"), (1e6, "M"), (1e3, "k")] {
        if value.abs() >= unit {
            return format!("{}{word}", crate::report::number(value / unit));
        }
    }
    crate::report::number(value)
}

/// Tells whether a setup is ours among `all`; where none has our name, all are but the ceiling.
pub(super) fn is_ours(setup: &str, all: &[&str]) -> bool {
    let named = |setup: &str| setup.starts_with("rhizome") || setup.starts_with("ours");
    if all.iter().any(|setup| named(setup)) {
        named(setup)
    } else {
        setup != DIRECT
    }
}

/// Returns at most `most` characters of a text.
pub(super) fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let start: String = text.chars().take(most.saturating_sub(1)).collect();
    format!("{start}…")
}

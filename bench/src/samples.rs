//! Measured values, gathered over repetitions, with their median and spread; and how latencies are
//! spread over all repetitions together.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::latency::Latencies;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Figure {
    pub(crate) name: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) better: Better,
}

impl Figure {
    /// Makes a figure of which more is better.
    pub(crate) const fn higher(name: &'static str, unit: &'static str) -> Self {
        let better = Better::Higher;
        Self { name, unit, better }
    }

    /// Makes a figure of which less is better.
    pub(crate) const fn lower(name: &'static str, unit: &'static str) -> Self {
        let better = Better::Lower;
        Self { name, unit, better }
    }
}

/// Which of two values is better.
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
    /// Tells whether `value` keeps to the bound.
    pub(crate) fn holds(self, value: f64) -> bool {
        match self {
            Self::AtLeast(bound) => value >= bound,
            Self::AtMost(bound) => value <= bound,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Series {
    /// Through what: a transport, or `direct`.
    pub(crate) setup: String,
    pub(crate) case: String,
    pub(crate) figure: Figure,
    /// Where it is on an axis, when the same was measured at several places of one.
    pub(crate) at: Option<At>,
    values: Vec<f64>,
}

/// A place on an axis: with 10,000 names, say.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct At {
    /// What there is more or less of.
    pub(crate) axis: &'static str,
    pub(crate) value: f64,
}

impl Series {
    /// Returns the value in the middle; the mean of the two in the middle, if there are.
    pub(crate) fn median(&self) -> f64 {
        let count = self.values.len();
        let middle = (
            self.values.get(count.saturating_sub(1) / 2),
            self.values.get(count / 2),
        );
        match middle {
            (Some(lower), Some(upper)) => f64::midpoint(*lower, *upper),
            _ => f64::NAN,
        }
    }

    /// Returns the lowest and the highest value.
    pub(crate) fn range(&self) -> (f64, f64) {
        let at = |value: Option<&f64>| value.copied().unwrap_or(f64::NAN);
        (at(self.values.first()), at(self.values.last()))
    }

    /// Returns how many values there are.
    pub(crate) fn count(&self) -> usize {
        self.values.len()
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Curve {
    pub(crate) setup: String,
    pub(crate) case: String,
    pub(crate) latencies: Latencies,
}

/// Everything measured, in the order in which it was first.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    series: Vec<Series>,
    curves: Vec<Curve>,
}

impl Samples {
    pub(crate) fn add(&mut self, setup: &str, case: &str, figure: Figure, value: f64) {
        self.insert(setup, case, None, figure, value);
    }

    /// Adds one value of a case that is a place on an axis.
    pub(crate) fn add_at(&mut self, setup: &str, case: &str, at: At, figure: Figure, value: f64) {
        self.insert(setup, case, Some(at), figure, value);
    }

    fn insert(&mut self, setup: &str, case: &str, at: Option<At>, figure: Figure, value: f64) {
        let same = |series: &&mut Series| {
            series.setup == setup && series.case == case && series.figure == figure
        };
        if let Some(series) = self.series.iter_mut().find(same) {
            let at = series.values.partition_point(|other| *other < value);
            series.values.insert(at, value);
            return;
        }
        self.series.push(Series {
            setup: setup.to_owned(),
            case: case.to_owned(),
            figure,
            at,
            values: vec![value],
        });
    }

    /// Adds the median, the 99th percentile and the longest, as `figures`, times so many a second.
    pub(crate) fn add_quantiles(
        &mut self,
        setup: &str,
        case: &str,
        [p50, p99, max]: [Figure; 3],
        a_second: f64,
        latencies: &Latencies,
    ) {
        let found = [
            (p50, latencies.quantile(0.5)),
            (p99, latencies.quantile(0.99)),
            (max, latencies.max()),
        ];
        for (figure, took) in found {
            self.add(setup, case, figure, took.as_secs_f64() * a_second);
        }
    }

    /// Adds the latencies of one repetition.
    pub(crate) fn add_latencies(
        &mut self,
        setup: &str,
        case: &str,
        latencies: &Latencies,
    ) -> Result<()> {
        let same = |curve: &&mut Curve| curve.setup == setup && curve.case == case;
        if let Some(curve) = self.curves.iter_mut().find(same) {
            return curve.latencies.add(latencies);
        }
        self.curves.push(Curve {
            setup: setup.to_owned(),
            case: case.to_owned(),
            latencies: latencies.clone(),
        });
        Ok(())
    }

    pub(crate) fn curves(&self) -> &[Curve] {
        &self.curves
    }

    pub(crate) fn series(&self) -> &[Series] {
        &self.series
    }

    /// Returns the best median of a figure among the setups that count.
    pub(crate) fn best(
        &self,
        case: &str,
        figure: Figure,
        counts: impl Fn(&str) -> bool,
    ) -> Option<f64> {
        let same = |one: &&Series| one.case == case && one.figure == figure && counts(&one.setup);
        let medians = self.series.iter().filter(same).map(Series::median);
        medians.reduce(match figure.better {
            Better::Higher => f64::max,
            Better::Lower => f64::min,
        })
    }

    pub(crate) fn median(&self, setup: &str, case: &str, figure: Figure) -> Option<f64> {
        self.series
            .iter()
            .find(|one| one.setup == setup && one.case == case && one.figure == figure)
            .map(Series::median)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Figure = Figure::higher("rate", "per s");

    #[test]
    fn repetitions_have_a_median_and_a_spread() {
        let mut samples = Samples::default();
        for value in [3.0, 1.0, 2.0] {
            samples.add("direct", "dials", RATE, value);
        }
        samples.add("direct", "pings", RATE, 9.0);
        let [dials, pings] = samples.series() else {
            panic!("two series")
        };
        assert_eq!((dials.median(), dials.range()), (2.0, (1.0, 3.0)));
        assert_eq!((pings.median(), pings.count()), (9.0, 1));
        samples.add("direct", "dials", RATE, 2.5);
        assert_eq!(samples.median("direct", "dials", RATE), Some(2.25));
        assert_eq!(samples.median("direct", "pings", RATE), Some(9.0));
        assert_eq!(samples.median("other", "pings", RATE), None);
    }

    #[test]
    fn latencies_of_repetitions_are_counted_together() {
        let mut samples = Samples::default();
        let mut latencies = Latencies::new().unwrap();
        latencies.record(std::time::Duration::from_millis(1));
        for _ in 0..2 {
            let added = samples.add_latencies("direct", "rtt", &latencies);
            added.unwrap();
        }
        let [curve] = samples.curves() else {
            panic!("one curve")
        };
        assert_eq!(curve.latencies.count(), 2);
    }

    #[test]
    fn a_bound_includes_itself() {
        assert!(Bound::AtLeast(2.0).holds(2.0) && !Bound::AtLeast(2.0).holds(1.9));
        assert!(Bound::AtMost(2.0).holds(2.0) && !Bound::AtMost(2.0).holds(2.1));
    }
}

//! How often files were read again, and with which result.

use std::sync::OnceLock;

use telemetry::metrics::{Counter, CounterFamily};

/// The family `rhizome_tls_reloads_total{purpose,result}`, registered once per process.
#[derive(Clone, Debug)]
pub struct Metrics {
    reloads: CounterFamily,
}

impl Metrics {
    /// Registers the family.
    ///
    /// # Panics
    /// When it is registered already.
    #[must_use]
    pub fn new(registry: &telemetry::Registry) -> Self {
        Self {
            reloads: registry.counter(
                "rhizome_tls_reloads_total",
                "Changed TLS files that were taken, or refused with the last good ones kept.",
                &["purpose", "result"],
            ),
        }
    }
}

/// The series of one set of files, once it has any.
#[derive(Debug, Default)]
pub(crate) struct Counted {
    series: OnceLock<Series>,
}

#[derive(Debug)]
struct Series {
    taken: Counter,
    refused: Counter,
}

impl Counted {
    pub(crate) fn count_in(&self, metrics: &Metrics, purpose: &str) {
        // A second call keeps the first's series: one set of files has one purpose.
        let _ = self.series.set(Series {
            taken: metrics.reloads.with(&[purpose, "taken"]),
            refused: metrics.reloads.with(&[purpose, "refused"]),
        });
    }

    pub(crate) fn taken(&self) {
        if let Some(series) = self.series.get() {
            series.taken.inc();
        }
    }

    pub(crate) fn refused(&self) {
        if let Some(series) = self.series.get() {
            series.refused.inc();
        }
    }
}

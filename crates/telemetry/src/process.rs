//! Metrics about the process itself: the usual `process_*`, `rhizome_build_info` and
//! `rhizome_ready`.
//!
//! Everything is read from `/proc/self` (proc(5)), or asked of the process, when scraped; what cannot
//! be had is left out.

use std::fs;

use procfs::process::{LimitValue, Process};

use crate::metrics::{Encoder, Kind, Registry};

/// What a binary was built from.
#[derive(Clone, Copy, Debug)]
pub struct Build {
    /// The program's name.
    pub binary: &'static str,
    /// Its version.
    pub version: &'static str,
    /// The revision of the sources, where known.
    pub revision: Option<&'static str>,
}

/// Registers `process_*`, `rhizome_build_info` and `rhizome_ready`.
///
/// # Panics
/// When they are registered already.
pub fn register(registry: &Registry, build: Build) {
    let readiness = registry.readiness();
    registry.collect(move |out| {
        write_build(out, build);
        write_ready(out, readiness());
        write_process(out);
    });
}

fn write_ready(out: &mut Encoder, ready: Option<bool>) {
    let help = "1 while /readyz says that the process can do its job, else 0.";
    out.family("rhizome_ready", help, Kind::Gauge, |family| {
        if let Some(ready) = ready {
            family.sample(&[], u64::from(ready));
        }
    });
}

fn write_build(out: &mut Encoder, build: Build) {
    let help = "What this binary was built from; always 1.";
    out.family("rhizome_build_info", help, Kind::Gauge, |family| {
        family.labels(&["version", "revision", "binary"]);
        let mut labels = vec![("version", build.version)];
        labels.extend(build.revision.map(|revision| ("revision", revision)));
        labels.push(("binary", build.binary));
        family.sample(&labels, 1);
    });
}

#[expect(clippy::cast_precision_loss, reason = "a metric; exact up to 2^53")]
fn write_process(out: &mut Encoder) {
    let mut one = |name, help, kind, value: Option<f64>| {
        out.family(name, help, kind, |family| {
            if let Some(value) = value {
                family.sample(&[], value);
            }
        });
    };
    // First: a `Process` has a descriptor of its own.
    let open = open_fds();
    let process = Process::myself().ok();
    let process = process.as_ref();
    let stat = process.and_then(|process| process.stat().ok());
    let stat = stat.as_ref();
    let ticks = procfs::ticks_per_second() as f64;

    let help = "Processor time used, user and system, in seconds.";
    let value = stat.map(|stat| (stat.utime + stat.stime) as f64 / ticks);
    one("process_cpu_seconds_total", help, Kind::Counter, value);
    let help = "Resident memory in bytes.";
    let memory = process.and_then(|process| process.statm().ok());
    let value = memory.map(|memory| (memory.resident * procfs::page_size()) as f64);
    one("process_resident_memory_bytes", help, Kind::Gauge, value);
    let help = "Open file descriptors.";
    one("process_open_fds", help, Kind::Gauge, open);
    let help = "The most file descriptors that may be open.";
    let limits = process.and_then(|process| process.limits().ok());
    let value = limits.map(|limits| match limits.max_open_files.soft_limit {
        LimitValue::Unlimited => f64::INFINITY,
        LimitValue::Value(most) => most as f64,
    });
    one("process_max_fds", help, Kind::Gauge, value);
    let help = "When the process started, in seconds since 1970.";
    let boot = procfs::boot_time_secs().ok();
    let started = boot.zip(stat);
    let value = started.map(|(boot, stat)| boot as f64 + stat.starttime as f64 / ticks);
    one("process_start_time_seconds", help, Kind::Gauge, value);
    let value = stat.map(|stat| stat.num_threads as f64);
    one("process_threads", "Threads.", Kind::Gauge, value);
}

/// Counts open descriptors: since Linux 6.2 that is the size of the directory, which costs nothing
/// even with a million of them; before, its entries are counted, less the one that counts.
#[expect(clippy::cast_precision_loss, reason = "a metric; exact up to 2^53")]
fn open_fds() -> Option<f64> {
    match fs::metadata("/proc/self/fd").ok()?.len() {
        0 => Some(
            fs::read_dir("/proc/self/fd")
                .ok()?
                .count()
                .saturating_sub(1) as f64,
        ),
        open => Some(open as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Exposition;

    fn registered(revision: Option<&'static str>) -> (Registry, String) {
        let build = Build {
            binary: "b",
            version: "1.2.3",
            revision,
        };
        let registry = Registry::new();
        register(&registry, build);
        let text = registry.encode(Exposition::Text);
        (registry, text)
    }

    #[test]
    fn this_process_has_every_value() {
        let (registry, text) = registered(None);
        let value = |name: &str| -> f64 {
            let name = format!("{name} ");
            let mut values = text.lines().filter_map(|line| line.strip_prefix(&name));
            values.next().unwrap().parse().unwrap()
        };
        assert!(value("process_cpu_seconds_total") >= 0.0);
        assert!(value("process_resident_memory_bytes") > 100_000.0);
        assert!(value("process_open_fds") >= 3.0);
        assert!(value("process_max_fds") >= value("process_open_fds"));
        assert!(value("process_threads") >= 1.0);
        let started = value("process_start_time_seconds");
        let now = std::time::UNIX_EPOCH.elapsed().unwrap();
        assert!((started - now.as_secs_f64()).abs() < 86_400.0, "{started}");
        assert!(text.contains("rhizome_build_info{version=\"1.2.3\",binary=\"b\"} 1\n"));
        assert_eq!(registry.describe().len(), 8);
        let (_, text) = registered(Some("abc"));
        assert!(text.contains("{version=\"1.2.3\",revision=\"abc\",binary=\"b\"}"));
    }

    #[test]
    fn descriptors_are_counted() {
        let open = |_| fs::File::open("/proc/self/stat").unwrap();
        let held: Vec<_> = (0..50).map(open).collect();
        assert!(open_fds().unwrap() >= 53.0);
        drop(held);
    }
}

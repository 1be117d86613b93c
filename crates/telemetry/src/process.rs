//! Metrics about the process itself: the usual `process_*`, `rhizome_build_info` and
//! `rhizome_ready`.
//!
//! Everything is read from `/proc/self` (proc(5)), or asked of the process, when scraped; what cannot
//! be had is left out.

use std::fs;

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
    let read = |path| fs::read_to_string(path).ok();
    let stat = read("/proc/self/stat").and_then(|text| parse_stat(&text));
    let stat = |field: fn(&Stat) -> u64| stat.as_ref().map(|stat| field(stat) as f64);
    let ticks = rustix::param::clock_ticks_per_second() as f64;
    let page = rustix::param::page_size() as f64;

    let help = "Processor time used, user and system, in seconds.";
    let value = stat(|stat| stat.cpu_ticks).map(|used| used / ticks);
    one("process_cpu_seconds_total", help, Kind::Counter, value);
    let help = "Resident memory in bytes.";
    let pages = read("/proc/self/statm").and_then(|text| parse_resident_pages(&text));
    let value = pages.map(|pages| pages * page);
    one("process_resident_memory_bytes", help, Kind::Gauge, value);
    let help = "Open file descriptors.";
    one("process_open_fds", help, Kind::Gauge, open_fds());
    let help = "The most file descriptors that may be open.";
    let value = read("/proc/self/limits").and_then(|text| parse_max_fds(&text));
    one("process_max_fds", help, Kind::Gauge, value);
    let help = "When the process started, in seconds since 1970.";
    let boot = read("/proc/stat").and_then(|text| parse_boot_time(&text));
    let started = boot.zip(stat(|stat| stat.start_ticks));
    let value = started.map(|(boot, start)| boot + start / ticks);
    one("process_start_time_seconds", help, Kind::Gauge, value);
    let value = stat(|stat| stat.threads);
    one("process_threads", "Threads.", Kind::Gauge, value);
}

#[derive(Debug, PartialEq)]
struct Stat {
    cpu_ticks: u64,
    threads: u64,
    start_ticks: u64,
}

/// Reads `/proc/PID/stat`. The second field, the program's name in parentheses, may hold anything,
/// so counting starts behind the last parenthesis, at field 3.
fn parse_stat(text: &str) -> Option<Stat> {
    let (_, rest) = text.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    Some(Stat {
        cpu_ticks: field(14)? + field(15)?,
        threads: field(20)?,
        start_ticks: field(22)?,
    })
}

/// Reads the second field of `/proc/PID/statm`.
fn parse_resident_pages(text: &str) -> Option<f64> {
    text.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Reads the soft limit from `/proc/PID/limits`.
fn parse_max_fds(text: &str) -> Option<f64> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))?;
    match line.split_ascii_whitespace().next()? {
        "unlimited" => Some(f64::INFINITY),
        number => number.parse().ok(),
    }
}

/// Reads the time of boot, in seconds since 1970, from `/proc/stat`.
fn parse_boot_time(text: &str) -> Option<f64> {
    text.lines()
        .find_map(|line| line.strip_prefix("btime "))?
        .trim()
        .parse()
        .ok()
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

    #[test]
    fn fields_are_found_and_foreign_text_is_no_value() {
        let text = "42 (a) R 1 (b c) S 1 42 42 0 -1 4194560 100 0 0 0 \
                    7 5 0 0 20 0 3 0 9000 1000 200 18446744073709551615 0";
        let expected = Stat {
            cpu_ticks: 12,
            threads: 3,
            start_ticks: 9000,
        };
        assert_eq!(parse_stat(text), Some(expected), "a hostile name");
        let letters = "1 (x) S a b c d e f g h i j k l m n o p q r s";
        for text in ["", "1 (x", "1 (x) S 1 2 3", letters] {
            assert_eq!(parse_stat(text), None, "{text:?}");
        }
        let limits =
            "Limit  Soft  Hard  Units\nMax open files            1024      4096    files\n";
        let unlimited = "Max open files unlimited unlimited files";
        let boot = "cpu 1 2\nbtime 1700000000\n";
        for (parse, text, value) in [
            (parse_resident_pages as fn(&str) -> _, "12", None),
            (parse_resident_pages, "100 25 3", Some(25.0)),
            (parse_max_fds, limits, Some(1024.0)),
            (parse_max_fds, unlimited, Some(f64::INFINITY)),
            (parse_max_fds, "Max processes 1 1", None),
            (parse_boot_time, boot, Some(1_700_000_000.0)),
            (parse_boot_time, "cpu 1 2", None),
        ] {
            assert_eq!(parse(text), value, "{text}");
        }
    }

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

//! Sets up logging to stderr, with a filter that can be replaced while the process runs.
//!
//! ```text
//!     tracing events ──▶ Targets (replaceable) ──▶ text or JSON ──▶ stderr
//! ```
//!
//! The filter knows targets and levels, `info,relay=debug`; the regular expressions of
//! `EnvFilter` are left out, they cost more memory than everything else here together.

mod targets;

use std::fmt;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::str::FromStr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tracing::Dispatch;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::{Registry, reload};

use crate::lines::Lines;
use crate::{lock, metrics};

/// How log lines are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// One JSON object per line.
    Json,
    /// For people; colored on a terminal.
    #[default]
    Text,
}

impl FromStr for LogFormat {
    type Err = UnknownLogFormat;

    fn from_str(format: &str) -> Result<Self, Self::Err> {
        match format {
            "json" => Ok(Self::Json),
            "text" => Ok(Self::Text),
            _ => Err(UnknownLogFormat),
        }
    }
}

/// The name of no log format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("neither text nor json")]
pub struct UnknownLogFormat;

/// Installs the process-wide logger, which writes to stderr.
///
/// `directives` is the content of `RUST_LOG`; absent or blank means `info`.
///
/// # Errors
/// [`LogError`] when a directive cannot be read, or when a logger is installed already.
pub fn init(format: LogFormat, directives: Option<&str>) -> Result<LogControl, LogError> {
    let colored = io::stderr().is_terminal();
    let stderr = io::stderr()
        .as_fd()
        .try_clone_to_owned()
        .map_err(LogError::Writer)?;
    let sink = Box::new(std::fs::File::from(stderr));
    let lines = Arc::new(Lines::start("log", sink).map_err(LogError::Writer)?);
    let handing_over = Arc::clone(&lines);
    let writer = move || HandOver(Arc::clone(&handing_over));
    let (dispatch, mut control) = build(format, directives, colored, writer)?;
    control.lines = Some(lines);
    tracing::dispatcher::set_global_default(dispatch).map_err(|_| LogError::AlreadyInstalled)?;
    Ok(control)
}

/// Replaces the log filter of a running process. Clones control the same filter.
#[derive(Clone)]
pub struct LogControl {
    handle: Option<reload::Handle<Targets, Registry>>,
    current: Arc<Mutex<String>>,
    lines: Option<Arc<Lines>>,
}

/// Queues one formatted event at a time, without blocking its thread.
struct HandOver(Arc<Lines>);

impl io::Write for HandOver {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.hand_over(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl LogControl {
    /// Makes a control that remembers directives and filters nothing, for a process (or a test)
    /// whose logger was installed elsewhere.
    pub fn detached() -> Self {
        Self {
            handle: None,
            current: Arc::new(Mutex::new(DEFAULT.to_owned())),
            lines: None,
        }
    }

    /// Applies `directives`, for example `info` or `warn,serve=trace`. What they do not cover is
    /// at `info`. Stricter than [`init`]: there must be a directive, it must name a level by its name, and
    /// its target must be a crate that logs.
    ///
    /// # Errors
    /// [`LogError`] when they cannot be read; the filter then stays as it was.
    pub fn set(&self, directives: &str) -> Result<(), LogError> {
        let (targets, text) = parse(directives)?;
        check(directives)?;
        let mut current = lock(&self.current);
        if let Some(handle) = &self.handle {
            handle.reload(targets).map_err(|_| LogError::Gone)?;
        }
        *current = text;
        Ok(())
    }

    /// Writes what was logged and ends the log, waiting at most `limit`; to be called at the end of a
    /// process.
    pub fn close(&self, limit: Duration) {
        if let Some(lines) = &self.lines {
            lines.close(limit);
        }
    }

    /// Registers `rhizome_log_dropped_total`.
    ///
    /// # Panics
    /// When it is registered already.
    pub fn register(&self, registry: &metrics::Registry) {
        let lines = self.lines.clone();
        let help = "Log lines that were dropped rather than waited for.";
        registry.collect(move |out| {
            let dropped = lines.as_ref().map_or(0, |lines| lines.dropped());
            let kind = metrics::Kind::Counter;
            out.value("rhizome_log_dropped_total", help, kind, dropped);
        });
    }

    /// Returns the directives in effect.
    pub fn current(&self) -> String {
        lock(&self.current).clone()
    }
}

impl fmt::Debug for LogControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LogControl").field(&self.current()).finish()
    }
}

/// Why logging could not be set up or changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The process has a logger already.
    #[error("a logger is installed already")]
    AlreadyInstalled,
    /// One directive is neither `LEVEL` nor `TARGET=LEVEL`.
    #[error(
        "log directive {0:?}: expected LEVEL or TARGET=LEVEL, with LEVEL one of off, error, warn, \
         info, debug, trace"
    )]
    Directive(String),
    /// There is no directive.
    #[error("no log directive: expected LEVEL or TARGET=LEVEL, separated by commas")]
    Empty,
    /// The logger that was controlled is no more.
    #[error("the logger this controls is gone")]
    Gone,
    /// No crate has this name.
    #[error("log target {0:?}: no crate of this name logs anything")]
    Target(String),
    /// Standard error cannot be written to by a thread of its own.
    #[error("starting the thread that writes the log")]
    Writer(#[source] io::Error),
}

/// Builds what [`init`] installs, writing to `writer`.
fn build<W>(
    format: LogFormat,
    directives: Option<&str>,
    colored: bool,
    writer: W,
) -> Result<(Dispatch, LogControl), LogError>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let (targets, text) = parse(directives.unwrap_or_default())?;
    let (filter, handle) = reload::Layer::new(targets);
    let registry = Registry::default().with(filter);
    let lines = tracing_subscriber::fmt::layer()
        .with_ansi(colored)
        .with_writer(writer);
    let dispatch = match format {
        LogFormat::Json => Dispatch::new(registry.with(lines.json().flatten_event(true))),
        LogFormat::Text => Dispatch::new(registry.with(lines)),
    };
    let control = LogControl {
        handle: Some(handle),
        current: Arc::new(Mutex::new(text)),
        lines: None,
    };
    Ok((dispatch, control))
}

/// Parses directives, stricter than `Targets` does: there a misspelled level counts as a target, which
/// silences everything else.
fn parse(directives: &str) -> Result<(Targets, String), LogError> {
    // The DNS server of the node proxy writes two lines for each query at INFO; the WireGuard of
    // the tunnel warns of every handshake that is sent again, which the tunnel counts; kube's client warns
    // with the whole of a body that it cannot read, Secrets among them.
    let mut targets = Targets::new()
        .with_default(LevelFilter::INFO)
        .with_target("boringtun", LevelFilter::OFF)
        .with_target("hickory_server", LevelFilter::WARN)
        .with_target("kube_client::client", LevelFilter::ERROR);
    let mut kept = Vec::new();
    for (directive, target, level) in split(directives) {
        let error = || LogError::Directive(directive.to_owned());
        let level: LevelFilter = level.parse().map_err(|_| error())?;
        targets = match target {
            Some(target) if is_target(target) => targets.with_target(target, level),
            Some(_) => return Err(error()),
            None => targets.with_default(level),
        };
        kept.push(directive);
    }
    let text = if kept.is_empty() {
        DEFAULT.to_owned()
    } else {
        kept.join(",")
    };
    Ok((targets, text))
}

/// Refuses what is allowed in a configuration, whose author may have other programs in mind, but would
/// be a mistake in a request: it would silently replace the filter.
fn check(directives: &str) -> Result<(), LogError> {
    for (directive, target, level) in split(directives) {
        if !LEVELS.iter().any(|name| level.eq_ignore_ascii_case(name)) {
            return Err(LogError::Directive(directive.to_owned()));
        }
        if let Some(target) = target.filter(|target| !targets::is_known(target)) {
            return Err(LogError::Target(target.to_owned()));
        }
    }
    split(directives).next().map(|_| ()).ok_or(LogError::Empty)
}

/// Splits directives; returns each with its target, if it has one, and its level.
fn split(directives: &str) -> impl Iterator<Item = (&str, Option<&str>, &str)> {
    let all = directives.split(',').map(str::trim);
    let all = all.filter(|directive| !directive.is_empty());
    all.map(|directive| match directive.split_once('=') {
        Some((target, level)) => (directive, Some(target.trim()), level.trim()),
        None => (directive, None, directive),
    })
}

/// Returns whether `target` looks like a module path or a dotted name.
fn is_target(target: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_:-.".contains(c);
    !target.is_empty() && target.chars().all(plain)
}

const DEFAULT: &str = "info";
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl Write for Sink {
        fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
            lock(&self.0).extend_from_slice(buf);
            Ok(buf.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Sink {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    fn logger(format: LogFormat, directives: Option<&str>) -> (Dispatch, LogControl, Sink) {
        let sink = Sink::default();
        let writer = sink.clone();
        let (dispatch, control) = build(format, directives, false, move || writer.clone()).unwrap();
        (dispatch, control, sink)
    }

    #[test]
    fn filter_is_replaced_while_running() {
        let (dispatch, control, sink) = logger(LogFormat::Text, None);
        assert_eq!(control.current(), "info");
        tracing::dispatcher::with_default(&dispatch, || {
            let say = || {
                tracing::debug!(target: "relay", "one");
                tracing::info!(target: "route", "two");
            };
            for (directives, lines) in [("info", 1), ("warn, relay=debug", 2), ("off", 2)] {
                control.set(directives).unwrap();
                say();
                assert_eq!(sink.text().lines().count(), lines, "{directives}");
            }
        });
        assert_eq!(control.current(), "off");
        drop(dispatch);
        assert!(matches!(control.set("debug"), Err(LogError::Gone)));
        assert_eq!(control.current(), "off");
    }

    #[test]
    fn json_lines_are_objects_with_flat_fields() {
        let (dispatch, _control, sink) = logger(LogFormat::Json, Some("info"));
        tracing::dispatcher::with_default(&dispatch, || {
            tracing::info!(listener = "tls", "quote \" and\nnewline");
        });
        let text = sink.text();
        assert_eq!(text.lines().count(), 1);
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["listener"], "tls");
        assert_eq!(value["level"], "INFO");
    }

    #[test]
    fn unnamed_targets_stay_at_info() {
        let (targets, text) = parse("relay=trace").unwrap();
        assert!(targets.would_enable("route", &tracing::Level::INFO));
        assert!(!targets.would_enable("route", &tracing::Level::DEBUG));
        assert!(targets.would_enable("relay::splice", &tracing::Level::TRACE));
        assert_eq!(text, "relay=trace");
    }

    #[test]
    fn blank_directives_mean_info_at_start_only() {
        let control = LogControl::detached();
        for blank in ["", " \n", ",", ",,", " , "] {
            assert_eq!(parse(blank).unwrap().1, "info");
            assert!(matches!(control.set(blank), Err(LogError::Empty)));
        }
    }

    #[test]
    fn bad_directive_is_named_and_changes_nothing() {
        let control = LogControl::detached();
        control.set("warn,serve=debug").unwrap();
        for bad in [
            "debgu",
            "relay",
            "relay=loud",
            "=info",
            "a=b=c",
            "re lay=info",
            "x[{y}]=info",
            "nonsense",
            "serve=",
            "3",
            "serve=5",
            "{\"level\":\"debug\"}",
        ] {
            let error = control.set(&format!("info,{bad}")).unwrap_err();
            assert!(matches!(error, LogError::Directive(directive) if directive == bad));
            assert!(control.set(bad).is_err(), "{bad}");
            assert_eq!(control.current(), "warn,serve=debug", "{bad}");
        }
        for (directive, unknown) in [
            ("nonsense=debug", "nonsense"),
            ("level=debug", "level"),
            ("realy::half=trace", "realy::half"),
        ] {
            let error = control.set(&format!("info,{directive}")).unwrap_err();
            assert!(matches!(error, LogError::Target(target) if target == unknown));
            assert_eq!(control.current(), "warn,serve=debug", "{directive}");
        }
    }
}

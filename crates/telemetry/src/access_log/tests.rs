//! What the log's readers get, and what happens when they do not read.

use super::*;
use std::sync::Mutex;
use std::sync::{Condvar, MutexGuard};
use std::thread;
use std::time::UNIX_EPOCH;

fn record<'a>() -> AccessRecord<'a> {
    AccessRecord {
        time: UNIX_EPOCH + Duration::from_millis(1_785_587_696_789),
        listener: "tls",
        protocol: "tls",
        peer: "10.0.0.1:40000".parse().unwrap(),
        client: "[2001:db8::1]:1234".parse().unwrap(),
        server_name: Some("api.foo.example.com"),
        alpn: Some("h2,http/1.1"),
        destination: None,
        connect: None,
        cluster: Some("outbound|443||kube-apiserver.shoot--a.svc.cluster.local"),
        endpoint: Some("10.1.0.7:443".parse().unwrap()),
        rx_bytes: 12,
        tx_bytes: u64::MAX,
        duration: Duration::from_micros(1_234_999),
        reason: "closed",
    }
}

fn line(record: &AccessRecord<'_>, json: bool) -> String {
    let mut line = String::new();
    format::line(&mut line, record, json).unwrap();
    line
}

// Names and order of the fields are a contract.
#[test]
fn lines_are_exact() {
    assert_eq!(
        line(&record(), true),
        "{\"time\":\"2026-08-01T12:34:56.789Z\",\"listener\":\"tls\",\"protocol\":\"tls\",\
         \"peer\":\"10.0.0.1:40000\",\"client\":\"[2001:db8::1]:1234\",\
         \"server_name\":\"api.foo.example.com\",\"alpn\":\"h2,http/1.1\",\"destination\":null,\
         \"connect\":null,\"cluster\":\"outbound|443||kube-apiserver.shoot--a.svc.cluster.local\",\
         \"endpoint\":\"10.1.0.7:443\",\"rx_bytes\":12,\"tx_bytes\":18446744073709551615,\
         \"duration_ms\":1234,\"reason\":\"closed\"}"
    );
    assert_eq!(
        line(&record(), false),
        "time=2026-08-01T12:34:56.789Z listener=tls protocol=tls peer=10.0.0.1:40000 \
         client=[2001:db8::1]:1234 server_name=api.foo.example.com alpn=h2,http/1.1 \
         destination=- connect=- \
         cluster=outbound|443||kube-apiserver.shoot--a.svc.cluster.local endpoint=10.1.0.7:443 \
         rx_bytes=12 tx_bytes=18446744073709551615 duration_ms=1234 reason=closed"
    );
}

#[test]
fn hostile_json_values_round_trip_on_one_line() {
    for value in [
        "a\",\"reason\":\"forged",
        "line\nfeed\r\ttab\u{0}\u{1f}\u{7f}\u{85}\u{9b}31m",
        "\u{2028}\u{202e}reversed\u{feff}\u{1f600}\u{e9}\\",
        "",
    ] {
        let server_name = Some(value);
        let record = AccessRecord {
            server_name,
            ..record()
        };
        let line = line(&record, true);
        let parsed: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(parsed["server_name"], value);
        assert_eq!(parsed["reason"], "closed");
        let hidden = |c: char| c.is_control() || c == '\u{2028}' || c == '\u{202e}';
        assert!(!line.chars().any(hidden), "{line}");
    }
}

#[test]
fn hostile_text_values_stay_one_ascii_field() {
    for (value, written) in [
        ("a b", "\"a b\""),
        ("x reason=forged", "\"x reason=forged\""),
        ("a=b", "\"a=b\""),
        ("say \"hi\" \\", "\"say \\\"hi\\\" \\\\\""),
        ("\u{1b}[31m\n", "\"\\u001b[31m\\n\""),
        ("\u{e9}\u{1f600}", "\"\\u00e9\\ud83d\\ude00\""),
        ("-", "\"-\""),
        ("", "\"\""),
        ("plain-1.2_x", "plain-1.2_x"),
    ] {
        // Mapped addresses are written as IPv4.
        let record = AccessRecord {
            peer: "[::ffff:192.0.2.1]:7".parse().unwrap(),
            connect: Some(value),
            ..record()
        };
        let line = line(&record, false);
        for field in [
            " peer=192.0.2.1:7 ",
            &format!(" connect={written} cluster="),
        ] {
            assert!(line.contains(field), "{line}");
        }
        let plain = |c: char| c == ' ' || c.is_ascii_graphic();
        assert!(line.chars().all(plain), "{line}");
    }
}

/// A sink that can be held shut.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<GateState>, Condvar)>);

#[derive(Default)]
struct GateState {
    shut: bool,
    waiting: bool,
    broken: bool,
    written: Vec<u8>,
}

impl Gate {
    fn change(&self, change: impl FnOnce(&mut GateState)) {
        change(&mut self.0.0.lock().unwrap());
        self.0.1.notify_all();
    }

    fn wait_until_writer_waits(&self) {
        let state = self.0.0.lock().unwrap();
        drop(self.0.1.wait_while(state, |state| !state.waiting).unwrap());
    }

    fn when_open(&self) -> MutexGuard<'_, GateState> {
        let state = self.0.0.lock().unwrap();
        self.0.1.wait_while(state, |state| state.shut).unwrap()
    }

    fn lines(&self) -> usize {
        let written = &self.0.0.lock().unwrap().written;
        written.iter().filter(|&&byte| byte == b'\n').count()
    }
}

impl Write for Gate {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.change(|state| state.waiting = true);
        let mut state = self.when_open();
        if state.broken {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        state.written.extend_from_slice(buf);
        Ok(buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn start(gate: &Gate) -> AccessLog {
    AccessLog::new(AccessFormat::Json, Sink::Writer(Box::new(gate.clone()))).unwrap()
}

#[test]
fn closing_writes_what_was_handed_over() {
    let gate = Gate::default();
    let log = start(&gate);
    thread::scope(|scope| {
        for _ in 0..4 {
            let log = log.clone();
            scope.spawn(move || (0..100).for_each(|_| log.write(&record())));
        }
    });
    assert!(log.close(LONG));
    assert_eq!(gate.lines(), 400);
    assert_eq!(log.dropped(), 0);
    log.write(&record());
    assert_eq!((gate.lines(), log.dropped()), (400, 1));
    assert!(log.close(LONG), "closing again is fine");
}

#[test]
fn a_sink_that_stalls_costs_lines_and_no_time() {
    let gate = Gate::default();
    gate.change(|state| state.shut = true);
    let log = start(&gate);
    log.write(&record());
    gate.wait_until_writer_waits();
    (0..MAX_LINES + 10).for_each(|_| log.write(&record()));
    assert_eq!(log.dropped(), 10);
    assert!(!log.close(Duration::ZERO), "it cannot have been written");
    gate.change(|state| state.shut = false);
    assert!(log.close(LONG));
    assert_eq!(gate.lines(), MAX_LINES + 1);
}

#[test]
fn long_lines_are_bounded_by_bytes() {
    let gate = Gate::default();
    gate.change(|state| state.shut = true);
    let log = start(&gate);
    let long = "x".repeat(64 << 10);
    let record = AccessRecord {
        connect: Some(&long),
        ..record()
    };
    log.write(&record);
    gate.wait_until_writer_waits();
    (0..100).for_each(|_| log.write(&record));
    assert_eq!(log.dropped(), 101 - (MAX_BYTES / (64 << 10)) as u64 + 1);
    gate.change(|state| state.shut = false);
    assert!(log.close(LONG));
    let running = log.running.as_ref().unwrap();
    assert_eq!(running.lines.queued_bytes(), 0);
}

#[test]
fn a_broken_sink_is_counted_and_survived() {
    let gate = Gate::default();
    gate.change(|state| state.broken = true);
    let log = start(&gate);
    let registry = Registry::new();
    log.register(&registry);
    log.write(&record());
    assert!(log.close(LONG));
    assert_eq!(log.dropped(), 1);
    let text = registry.encode(crate::metrics::Exposition::Text);
    let counted = "\nrhizome_access_log_dropped_total 1\n";
    assert!(text.ends_with(counted), "{text}");
}

#[test]
fn off_starts_nothing() {
    let gate = Gate::default();
    let log = AccessLog::new(AccessFormat::Off, Sink::Writer(Box::new(gate.clone()))).unwrap();
    log.write(&record());
    assert!(!log.is_on());
    assert!(log.close(Duration::ZERO));
    assert_eq!((gate.lines(), log.dropped()), (0, 0));
}

/// Only a broken test waits this long.
const LONG: Duration = Duration::from_secs(60);

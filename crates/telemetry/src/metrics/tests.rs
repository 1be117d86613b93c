//! What a scraper reads.

use super::*;

fn sample() -> Registry {
    let registry = Registry::new();
    let bytes = registry.counter(
        "rhizome_relay_bytes_total",
        "Bytes relayed.",
        &["listener", "direction"],
    );
    bytes.with(&["tls", "tx"]).add(u64::MAX);
    bytes.with(&["tls", "rx"]).add(5);
    let active = registry.gauge("rhizome_active", "Now.", &[]);
    active.with(&[]).set(-3);
    registry.gauge("rhizome_unused", "Has no series.", &["x"]);
    let old = registry.counter("server_dial_failure_count", "Old name.", &[]);
    old.with(&[]).inc();
    let seconds = registry.histogram("rhizome_connect_seconds", "Time.", &["to"], &[0.5, 1.0]);
    let seconds = seconds.with(&["a"]);
    for value in [0.25, 0.5, 0.75, 4.0] {
        seconds.observe(value);
    }
    registry.collect(|out| {
        out.value("rhizome_snapshot_age_seconds", "Age.", Kind::Gauge, 1.5);
    });
    registry
}

#[test]
fn text_exposition_is_exact() {
    assert_eq!(
        sample().encode(Exposition::Text),
        "\
# HELP rhizome_active Now.
# TYPE rhizome_active gauge
rhizome_active -3
# HELP rhizome_connect_seconds Time.
# TYPE rhizome_connect_seconds histogram
rhizome_connect_seconds_bucket{to=\"a\",le=\"0.5\"} 2
rhizome_connect_seconds_bucket{to=\"a\",le=\"1\"} 3
rhizome_connect_seconds_bucket{to=\"a\",le=\"+Inf\"} 4
rhizome_connect_seconds_sum{to=\"a\"} 5.5
rhizome_connect_seconds_count{to=\"a\"} 4
# HELP rhizome_relay_bytes_total Bytes relayed.
# TYPE rhizome_relay_bytes_total counter
rhizome_relay_bytes_total{listener=\"tls\",direction=\"rx\"} 5
rhizome_relay_bytes_total{listener=\"tls\",direction=\"tx\"} 18446744073709551615
# HELP rhizome_snapshot_age_seconds Age.
# TYPE rhizome_snapshot_age_seconds gauge
rhizome_snapshot_age_seconds 1.5
# HELP server_dial_failure_count Old name.
# TYPE server_dial_failure_count counter
server_dial_failure_count 1
"
    );
}

#[test]
fn open_metrics_differs_where_it_must() {
    let text = sample().encode(Exposition::OpenMetrics);
    for part in [
        "# TYPE rhizome_relay_bytes counter\nrhizome_relay_bytes_total{",
        "# HELP rhizome_relay_bytes Bytes relayed.\n",
        "# TYPE server_dial_failure_count unknown\nserver_dial_failure_count 1",
        "_bucket{to=\"a\",le=\"1.0\"} 3\n",
        "_bucket{to=\"a\",le=\"+Inf\"} 4\n",
    ] {
        assert!(text.contains(part), "{part}");
    }
    assert!(text.ends_with("\n# EOF\n"));
}

#[test]
fn hostile_texts_and_numbers_are_escaped() {
    let registry = Registry::new();
    registry.collect(|out| {
        out.family("n", "a \"b\" \\ c\nd", Kind::Gauge, |family| {
            family.sample(&[("is", "x\"} 1\n# \\y\u{e9}")], 1);
            family.sample(&[("is", "a")], f64::INFINITY);
            family.sample(&[("is", "b")], f64::NEG_INFINITY);
            family.sample(&[("is", "c")], f64::NAN);
            family.sample(&[("is", "d")], 1e-7);
        });
    });
    assert_eq!(
        registry.encode(Exposition::Text),
        "\
# HELP n a \"b\" \\\\ c\\nd
# TYPE n gauge
n{is=\"x\\\"} 1\\n# \\\\y\u{e9}\"} 1
n{is=\"a\"} +Inf
n{is=\"b\"} -Inf
n{is=\"c\"} NaN
n{is=\"d\"} 0.0000001
"
    );
    let text = registry.encode(Exposition::OpenMetrics);
    assert!(text.contains("# HELP n a \\\"b\\\" \\\\ c\\nd\n"));
}

#[test]
fn a_removed_series_is_gone_and_starts_anew() {
    let registry = Registry::new();
    let family = registry.counter("c_total", "C.", &["cluster"]);
    let held = family.with(&["a"]);
    held.inc();
    family.with(&["b"]).add(2);
    assert!(family.remove(&["a"]));
    assert!(!family.remove(&["a"]));
    held.inc();
    assert!(!registry.encode(Exposition::Text).contains("cluster=\"a\""));
    assert_eq!(family.with(&["a"]).value(), 0);
    family.retain(|values| values[0] == "a");
    assert!(!registry.encode(Exposition::Text).contains("cluster=\"b\""));
}

#[test]
fn equal_labels_are_the_same_series() {
    let family = Registry::new().gauge("g", "G.", &["a", "b"]);
    family.with(&["1", "2"]).inc();
    family.with(&["1", "2"]).inc();
    assert_eq!(family.with(&["1", "2"]).value(), 2);
    assert_eq!(family.with(&["2", "1"]).value(), 0);
}

#[test]
fn description_lists_all_families() {
    let registry = Registry::new();
    registry.histogram("b_seconds", "B.", &["x"], &[1.0]);
    registry.gauge("d", "D.", &[]);
    registry.collect(|out| {
        // A collector can tell a scrape from the look at its families.
        let samples = !out.only_describes();
        out.family("a", "A.", Kind::Gauge, |family| {
            family.labels(&["cluster", "state"]);
            if samples {
                family.sample(&[("cluster", "y"), ("state", "z")], 1);
            }
        });
        out.family("c_total", "C.", Kind::Counter, |family| {
            family.sample(&[("y", "z")], 1);
        });
    });
    let described = registry.describe();
    let listed = described.iter().map(docs::line).collect::<Vec<_>>();
    assert_eq!(
        listed,
        [
            "- `a{cluster,state}` gauge: A.",
            "- `b_seconds{x}` histogram: B.",
            "- `c_total{y}` counter: C.",
            "- `d` gauge: D."
        ]
    );
    let text = registry.encode(Exposition::Text);
    assert_eq!(text.matches("# TYPE").count(), 2);
    assert!(text.contains("a{cluster=\"y\",state=\"z\"} 1\n"), "{text}");
}

#[test]
fn a_family_that_two_collectors_write_comes_once() {
    let mut encoder = Encoder::new(Exposition::Text);
    for value in [1, 2] {
        encoder.value("x", "X.", Kind::Gauge, value);
    }
    assert_eq!(encoder.finish(), "# HELP x X.\n# TYPE x gauge\nx 1\n");
}

#[test]
fn names_that_clash_in_either_format_are_refused() {
    for (what, register) in [
        (
            "one name twice",
            (|registry| drop(registry.counter("x", "X.", &[]))) as fn(&Registry),
        ),
        ("only in OpenMetrics", |registry| {
            drop(registry.counter("x_total", "X.", &[]))
        }),
        ("a histogram's own", |registry| {
            drop(registry.histogram("y", "Y.", &[], &[1.0]))
        }),
    ] {
        let registry = Registry::new();
        registry.gauge("x", "X.", &[]);
        registry.collect(|out| out.family("y_sum", "Y.", Kind::Gauge, |_| {}));
        let registered =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| register(&registry)));
        let panic = registered.expect_err(what);
        let text = panic.downcast_ref::<String>().unwrap();
        assert!(text.ends_with("the name is taken"), "{what}: {text}");
    }
}

#[test]
fn malformed_names_are_refused() {
    let family = |name: &str, kind, labels: &[&str]| Description {
        name: name.to_owned(),
        kind,
        help: String::new(),
        labels: labels.iter().map(|&label| label.to_owned()).collect(),
    };
    for name in ["", "1x", "a-b", "a b", "\u{e9}"] {
        let checked = encode::check(&family(name, Kind::Gauge, &[]));
        assert!(checked.is_err(), "{name:?}");
    }
    for label in ["", "1x", "a:b", "__a"] {
        let checked = encode::check(&family("x", Kind::Gauge, &[label]));
        assert!(checked.is_err(), "{label:?}");
    }
    assert!(encode::check(&family("x", Kind::Gauge, &["a", "a"])).is_err());
    assert!(encode::check(&family("x", Kind::Histogram, &["le"])).is_err());
    assert!(encode::check(&family("x:_y1", Kind::Gauge, &["_a1", "le"])).is_ok());
}

#[test]
fn the_format_follows_what_the_scraper_asks_for() {
    // What Prometheus 2.x and 3.x send.
    let two = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;\
               version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
    let three = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
                 application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;\
                 escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1";
    for (accept, expected) in [
        (two, Exposition::OpenMetrics),
        (three, Exposition::OpenMetrics),
        ("application/openmetrics-text", Exposition::OpenMetrics),
        ("APPLICATION/OpenMetrics-Text; q=1", Exposition::OpenMetrics),
        ("", Exposition::Text),
        ("*/*", Exposition::Text),
        ("text/html,application/xhtml+xml", Exposition::Text),
        (
            "text/plain, application/openmetrics-text;q=0.5",
            Exposition::Text,
        ),
        ("application/openmetrics-text;q=0", Exposition::Text),
        (
            "application/openmetrics-text;version=0.0.1",
            Exposition::Text,
        ),
        ("application/openmetrics-text;q=x", Exposition::Text),
    ] {
        assert_eq!(Exposition::negotiate(accept), expected, "{accept}");
    }
}

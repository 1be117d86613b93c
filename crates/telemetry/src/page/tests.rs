//! What the page shows, and that it loads nothing from elsewhere.

use super::*;
use crate::admin::Fact;

fn view() -> View {
    let listener = ListenerStatus {
        name: "tls".to_owned(),
        address: "[::]:443".to_owned(),
        protocol: "tls".to_owned(),
        active: 1234,
        total: 5_678_901,
        rx_bytes: 1536,
        tx_bytes: 3 << 30,
    };
    let endpoint = EndpointStatus {
        address: "10.0.0.7:443".to_owned(),
        zone: Some("a".to_owned()),
        state: "ejected",
        active: 0,
    };
    let cluster = ClusterStatus {
        name: "outbound|443||api".to_owned(),
        active: 3,
        failures: 12,
        endpoints: vec![endpoint],
    };
    let status = Status {
        version: "1.2.3",
        uptime: Duration::from_secs(90_000),
        generation: Some(42),
        generation_age: Some(Duration::from_secs(61)),
        facts: vec![Fact {
            name: "device".to_owned(),
            value: "dummy".to_owned(),
        }],
        listeners: vec![listener],
        clusters: vec![cluster],
        clusters_total: 1,
        ..Status::default()
    };
    View {
        binary: "sni-proxy",
        not_ready: None,
        status,
    }
}

fn page(view: &View, filter: &str) -> String {
    render(view, filter, SystemTime::UNIX_EPOCH, "abc")
}

#[test]
fn page_is_complete_without_script() {
    let html = page(&view(), "");
    for part in [
        "<title>sni-proxy 1.2.3</title>",
        "class=\"good\">ready</strong>",
        "<span id=\"uptime\">1 d 1 h</span>",
        "<p class=\"value\">1,234</p>",
        "5,678,901 since start",
        "<p class=\"value\">1.5 KiB</p>",
        "<p class=\"value\">3.0 GiB</p>",
        "<p class=\"value\">42</p>",
        "in effect for 1 min 1 s",
        "<dt>device</dt><dd>dummy</dd>",
        "<td class=\"code\">[::]:443</td>",
        "outbound|443||api",
        "<span class=\"bad\">ejected</span>",
        "zone a, 0 active",
        "As of 1970-01-01T00:00:00.000Z.",
    ] {
        assert!(html.contains(part), "{part} is not in\n{html}");
    }
}

#[test]
fn draining_precedes_unready_with_reason() {
    let mut view = view();
    view.not_ready = Some("no routes".to_owned());
    let html = page(&view, "");
    assert!(html.contains("class=\"bad\">not ready</strong>"));
    assert!(html.contains("<span id=\"reason\">no routes</span>"));
    view.status.draining = true;
    assert!(page(&view, "").contains("class=\"warn\">draining</strong>"));
}

#[test]
fn hostile_values_stay_text() {
    const HOSTILE: &str =
        "</script><script>alert(1)</script>\"'><img src=x onerror=alert(2)>&\u{0}";
    let clean = page(&view(), "");
    let mut view = view();
    view.not_ready = Some(HOSTILE.to_owned());
    let fact = Fact {
        name: HOSTILE.to_owned(),
        value: HOSTILE.to_owned(),
    };
    view.status.facts = vec![fact];
    let listener = &mut view.status.listeners[0];
    listener.name = HOSTILE.to_owned();
    listener.address = HOSTILE.to_owned();
    listener.protocol = HOSTILE.to_owned();
    let cluster = &mut view.status.clusters[0];
    cluster.name = HOSTILE.to_owned();
    cluster.endpoints[0].address = HOSTILE.to_owned();
    cluster.endpoints[0].zone = Some(HOSTILE.to_owned());
    let html = page(&view, HOSTILE);

    let count = |text: &str, of: &str| text.matches(of).count();
    for mark in ["<script", "</script", "<img", "<input", "<", "\""] {
        assert_eq!(count(&html, mark), count(&clean, mark), "{mark}");
    }
    let escaped = "&lt;img src=x onerror=alert(2)&gt;&amp;\u{fffd}";
    assert_eq!(count(&html, escaped), 10);
}

#[test]
fn long_table_is_cut_with_a_note() {
    let mut view = view();
    let cluster = view.status.clusters[0].clone();
    view.status.clusters = vec![cluster; 300];
    view.status.clusters_total = 10_000;
    let html = page(&view, "");
    assert_eq!(html.matches("outbound|443||api").count(), MAX_CLUSTERS);
    let endpoint = view.status.clusters[0].endpoints[0].clone();
    view.status.clusters.truncate(1);
    view.status.clusters[0].endpoints = vec![endpoint; 30];
    view.status.clusters_total = 1;
    assert!(page(&view, "").contains("and 6 more"));
}

#[test]
fn empty_tables_are_omitted() {
    let mut view = view();
    view.status = Status {
        version: "1",
        ..Status::default()
    };
    let html = page(&view, "");
    assert!(!html.contains("<table") && !html.contains("class=\"card\""));
    assert!(
        page(&view, "x").contains("0 matching."),
        "a filter that finds nothing can be undone"
    );
}

#[test]
fn numbers_are_formatted_for_people() {
    let age = |seconds| age(Duration::from_secs(seconds));
    for (shown, text) in [
        (bytes(0), "0 B"),
        (bytes(1023), "1023 B"),
        (bytes(1024), "1.0 KiB"),
        (bytes(1_048_524), "1023.9 KiB"),
        (bytes(1_048_575), "1.0 MiB"),
        (bytes(u64::MAX), "16.0 EiB"),
        (grouped(0), "0"),
        (grouped(999), "999"),
        (grouped(1000), "1,000"),
        (grouped(1_234_567), "1,234,567"),
        (age(0), "0 s"),
        (age(59), "59 s"),
        (age(60), "1 min 0 s"),
        (age(3599), "59 min 59 s"),
        (age(3600), "1 h 0 min"),
        (age(86_400 * 3 + 7200), "3 d 2 h"),
        (note(200, 10_000, false), "The first 200 of 10,000."),
        (note(200, 1000, true), "The first 200 of 1,000 matching."),
        (note(3, 3, false), "3."),
        (note(0, 0, true), "0 matching."),
    ] {
        assert_eq!(shown, text);
    }
}

#[test]
fn embedded_files_cannot_end_their_elements() {
    assert!(!SCRIPT.contains("</") && !SCRIPT.contains("<!--"));
    assert!(!STYLE.contains("</"));
}

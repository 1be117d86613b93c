//! A run's page says what the run's lines say, and needs nothing else.

use super::{Run, html};

const LINES: &str = concat!(
    r#"{"facts":{"kernel":"Linux 6","command":"rhizome-bench tls --rounds 3","cpu":"2 × <some>"},"compared":{"key":"peer","head":"× peer","legend":"a peer"}}"#,
    "\n",
    r#"{"setup":"direct","case":"bulk","figure":"throughput","unit":"Gb/s","better":"higher","median":100.0,"low":99.0,"high":101.0}"#,
    "\n",
    r#"{"setup":"rhizome","case":"bulk","figure":"throughput","unit":"Gb/s","better":"higher","median":40.0,"low":39.0,"high":42.0,"direct":100.0,"at_least":50.0,"peer":20.0}"#,
    "\n",
    r#"{"setup":"rhizome","case":"1 name","figure":"start","unit":"ms","better":"lower","median":4.0,"at":{"axis":"names","value":1}}"#,
    "\n",
    r#"{"setup":"rhizome","case":"1000 names","figure":"start","unit":"ms","better":"lower","median":9.0,"at":{"axis":"names","value":1000}}"#,
    "\n",
    r#"{"setup":"rhizome","case":"rtt","curve":"latency","unit":"µs","points":[[0.0,10.0],[0.5,12.0],[0.99,40.0],[1.0,90.0]]}"#,
    "\n",
);

fn page() -> String {
    html(&[Run::parse(LINES).unwrap()])
}

#[test]
fn the_page_shows_bars_lines_and_a_table() {
    let page = page();
    for part in [
        "throughput, Gb/s",
        "start, ms, by names",
        "rtt, µs by percentile",
        "rhizome-bench tls --rounds 3",
        "0 targets held, 1 missed",
        "2 × &lt;some&gt;",
        "<td class=\"n\">2</td>",
    ] {
        assert!(page.contains(part), "{part} is missing");
    }
    assert!(
        !page.contains("NaN") && !page.contains("inf"),
        "a number that is none"
    );
}

#[test]
fn nothing_is_loaded_from_elsewhere() {
    let page = page();
    for part in [
        "<script", "<link", "http:", "https:", "@import", "url(", "src=",
    ] {
        assert!(!page.contains(part), "{part}");
    }
}

#[test]
fn tags_are_closed() {
    let page = page();
    for tag in [
        "svg", "g", "figure", "ul", "li", "div", "section", "table", "details", "text",
    ] {
        let opened =
            page.matches(&format!("<{tag} ")).count() + page.matches(&format!("<{tag}>")).count();
        let closed = page.matches(&format!("</{tag}>")).count();
        assert_eq!(opened, closed, "{tag}");
    }
}

#[test]
fn lines_of_something_else_are_refused_with_their_number() {
    assert!(
        Run::parse("{\"a\":1}\n")
            .unwrap_err()
            .to_string()
            .contains("line 1")
    );
    assert!(Run::parse("").is_err());
}

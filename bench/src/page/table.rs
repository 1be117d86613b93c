//! Every number of a run, with what it is held to and compared with.

use std::fmt::Write;

use super::plot::{escape, is_ours};
use super::saved::{Row, Run};
use crate::report::{DIRECT, number, times};
use crate::samples::Bound;

/// Returns the table of all rows.
pub(super) fn table(run: &Run) -> String {
    let setups = run.setups();
    let compared = run.compared.as_ref();
    let head = compared.map_or("", |(head, _)| head.as_str());
    let mut html = format!(
        "<div class=\"scroll\"><table><thead><tr><th>case</th><th>setup</th><th>figure</th>\
         <th class=\"n\">median</th><th class=\"n\">range</th><th class=\"n\">direct</th>\
         <th class=\"n\">target</th><th class=\"n\">{}</th></tr></thead>\n<tbody>\n",
        escape(head)
    );
    for row in &run.rows {
        // Writing to a string does not fail.
        let _ = writeln!(html, "{}", line(row, &setups));
    }
    html.push_str("</tbody></table></div>\n");
    if let Some((head, legend)) = compared {
        let _ = writeln!(
            html,
            "<p class=\"legend\">{}: how many times better than {}</p>",
            escape(head),
            escape(legend)
        );
    }
    html
}

fn line(row: &Row, setups: &[&str]) -> String {
    let class = if row.setup == DIRECT {
        "direct"
    } else if is_ours(&row.setup, setups) {
        "ours"
    } else {
        "peer"
    };
    let range = if row.low < row.high {
        format!("{} – {}", number(row.low), number(row.high))
    } else {
        String::new()
    };
    let target = row.must.map_or_else(String::new, |must| {
        let (sign, bound) = match must {
            Bound::AtLeast(bound) => ("≥", bound),
            Bound::AtMost(bound) => ("≤", bound),
        };
        let (class, word) = if must.holds(row.median) {
            ("good", "ok")
        } else {
            ("bad", "missed")
        };
        format!("{sign} {} <b class=\"{class}\">{word}</b>", number(bound))
    });
    let ratio = row
        .peer
        .and_then(|peer| times(row.better, row.median, peer));
    format!(
        "<tr class=\"{class}\"><td>{}</td><td>{}</td><td>{}, {}</td><td class=\"n\">{}</td>\
         <td class=\"n\">{range}</td><td class=\"n\">{}</td><td class=\"n\">{target}</td>\
         <td class=\"n\">{}</td></tr>",
        escape(&row.case),
        escape(&row.setup),
        escape(&row.figure),
        escape(&row.unit),
        number(row.median),
        row.direct.map(number).unwrap_or_default(),
        ratio.map(number).unwrap_or_default(),
    )
}

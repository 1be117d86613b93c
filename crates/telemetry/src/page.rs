//! The page `/`: an overview for operators, in one self-contained document.
//!
//! ```text
//!     View ──render──▶ HTML with all values in it ──script, if it may run──▶ polls /status
//! ```
//!
//! The server renders everything, so that the page is whole without JavaScript; the script only
//! replaces values and works out rates. Every value is escaped here, and the script sets text,
//! never markup. Nothing is loaded from elsewhere, which the policy also enforces.

use std::fmt::{self, Display, Write};
use std::time::{Duration, SystemTime};

use rustix::rand::{GetRandomFlags, getrandom};

use crate::admin::{ClusterStatus, EndpointStatus, ListenerStatus, Status, View};
use crate::clock;

/// The most clusters shown at once.
pub(crate) const MAX_CLUSTERS: usize = 200;
/// The most endpoints shown per cluster.
const MAX_ENDPOINTS: usize = 24;

const STYLE: &str = include_str!("page/style.css");
const SCRIPT: &str = include_str!("page/script.js");

/// Returns 128 random bits in hexadecimal.
pub(crate) fn nonce() -> Result<String, rustix::io::Errno> {
    let mut bits = [0; 16];
    getrandom(&mut bits, GetRandomFlags::empty())?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bits)))
}

/// Returns the Content-Security-Policy under which the page with this nonce works, and no other
/// script, style or address does.
pub(crate) fn policy(nonce: &str) -> String {
    format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; \
         img-src data:; connect-src 'self'; form-action 'self'; base-uri 'none'; \
         frame-ancestors 'none'"
    )
}

/// Renders the page. `filter` is what the clusters were filtered by, or empty.
pub(crate) fn render(view: &View, filter: &str, now: SystemTime, nonce: &str) -> String {
    let mut out = String::with_capacity(16 << 10);
    let written = write_page(&mut out, view, filter, now, nonce);
    debug_assert!(written.is_ok(), "writing to a String cannot fail");
    out
}

fn write_page(
    out: &mut String,
    view: &View,
    filter: &str,
    now: SystemTime,
    nonce: &str,
) -> fmt::Result {
    let (binary, status) = (Escaped(view.binary), &view.status);
    write!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <title>{binary} {version}</title>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <link rel=\"icon\" href=\"data:,\">\n<style nonce=\"{nonce}\">\n{STYLE}</style>\n\
         </head>\n<body>\n",
        version = Escaped(status.version),
    )?;
    write_header(out, view, now)?;
    out.push_str("<main>\n");
    write_cards(out, status)?;
    write_facts(out, status)?;
    write_listeners(out, &status.listeners)?;
    write_clusters(out, status, filter)?;
    write!(
        out,
        "</main>\n<script nonce=\"{nonce}\">\n{SCRIPT}</script>\n</body>\n</html>\n"
    )
}

fn write_header(out: &mut String, view: &View, now: SystemTime) -> fmt::Result {
    let (class, state) = match (&view.not_ready, view.status.draining) {
        (_, true) => ("warn", "draining"),
        (None, false) => ("good", "ready"),
        (Some(_), false) => ("bad", "not ready"),
    };
    write!(
        out,
        "<header>\n<h1>{binary} <small>{version}</small></h1>\n\
         <p><strong id=\"state\" class=\"{class}\">{state}</strong> \
         <span id=\"reason\">{reason}</span></p>\n\
         <p class=\"quiet\">up <span id=\"uptime\">{uptime}</span></p>\n\
         <nav aria-label=\"Endpoints\">",
        binary = Escaped(view.binary),
        version = Escaped(view.status.version),
        reason = Escaped(view.not_ready.as_deref().unwrap_or_default()),
        uptime = age(view.status.uptime),
    )?;
    for name in ["config", "snapshot", "connections", "metrics", "status"] {
        write!(out, "<a href=\"{name}\">{name}</a> ")?;
    }
    out.push_str(
        "</nav>\n</header>\n<p id=\"stale\" class=\"notice\" role=\"status\" hidden></p>\n\
         <noscript><p class=\"notice\">As of ",
    );
    write!(out, "{}", clock::Rfc3339(now))?;
    out.push_str(
        ". Reload for newer values; with JavaScript they update themselves and rates are shown.\
         </p></noscript>\n",
    );
    Ok(())
}

fn write_cards(out: &mut String, status: &Status) -> fmt::Result {
    out.push_str("<section class=\"cards\" aria-label=\"Summary\">\n");
    if !status.listeners.is_empty() {
        let sum = |of: fn(&ListenerStatus) -> u64| {
            status.listeners.iter().map(of).fold(0, u64::saturating_add)
        };
        let total = grouped(sum(|listener| listener.total));
        let active = grouped(sum(|listener| listener.active));
        card(
            out,
            "connections",
            "Connections now",
            active,
            format_args!("{total} since start"),
        )?;
        let rx = bytes(sum(|listener| listener.rx_bytes));
        card(out, "rx", "In, from downstream", rx, "since start")?;
        let tx = bytes(sum(|listener| listener.tx_bytes));
        card(out, "tx", "Out, to downstream", tx, "since start")?;
    }
    if let Some(generation) = status.generation {
        let age = age(status.generation_age.unwrap_or_default());
        let number = grouped(generation);
        card(
            out,
            "generation",
            "Snapshot",
            number,
            format_args!("in effect for {age}"),
        )?;
    }
    out.push_str("</section>\n");
    Ok(())
}

fn card(
    out: &mut String,
    id: &str,
    title: &str,
    value: impl Display,
    below: impl Display,
) -> fmt::Result {
    writeln!(
        out,
        "<div class=\"card\" id=\"card-{id}\"><h2>{title}</h2><p class=\"value\">{value}</p>\
         <p class=\"quiet below\">{below}</p></div>"
    )
}

fn write_facts(out: &mut String, status: &Status) -> fmt::Result {
    if status.facts.is_empty() {
        return Ok(());
    }
    out.push_str("<section>\n<h2>Process</h2>\n<dl id=\"facts\">\n");
    for fact in &status.facts {
        writeln!(
            out,
            "<dt>{}</dt><dd>{}</dd>",
            Escaped(&fact.name),
            Escaped(&fact.value)
        )?;
    }
    out.push_str("</dl>\n</section>\n");
    Ok(())
}

fn write_listeners(out: &mut String, listeners: &[ListenerStatus]) -> fmt::Result {
    if listeners.is_empty() {
        return Ok(());
    }
    out.push_str(
        "<section>\n<h2 id=\"listeners-title\">Listeners</h2>\n<div class=\"scroll\">\
         <table id=\"listeners\" aria-labelledby=\"listeners-title\">\n<thead><tr>\
         <th scope=\"col\">Name</th><th scope=\"col\">Address</th><th scope=\"col\">Protocol</th>\
         <th scope=\"col\" class=\"number\">Active</th><th scope=\"col\" class=\"number\">Total</th>\
         <th scope=\"col\" class=\"number\">In</th><th scope=\"col\" class=\"number\">Out</th>\
         <th scope=\"col\" class=\"number rate\">In per s</th>\
         <th scope=\"col\" class=\"number rate\">Out per s</th></tr></thead>\n<tbody>\n",
    );
    for listener in listeners {
        writeln!(
            out,
            "<tr><th scope=\"row\">{name}</th><td class=\"code\">{address}</td><td>{protocol}</td>\
             <td class=\"number\">{active}</td><td class=\"number\">{total}</td>\
             <td class=\"number\">{rx}</td><td class=\"number\">{tx}</td>\
             <td class=\"number rate\">–</td><td class=\"number rate\">–</td></tr>",
            name = Escaped(&listener.name),
            address = Escaped(&listener.address),
            protocol = Escaped(&listener.protocol),
            active = grouped(listener.active),
            total = grouped(listener.total),
            rx = bytes(listener.rx_bytes),
            tx = bytes(listener.tx_bytes),
        )?;
    }
    out.push_str("</tbody>\n</table></div>\n</section>\n");
    Ok(())
}

fn write_clusters(out: &mut String, status: &Status, filter: &str) -> fmt::Result {
    if status.clusters_total == 0 && status.clusters.is_empty() && filter.is_empty() {
        return Ok(());
    }
    let shown = status.clusters.len();
    let note = note(shown, status.clusters_total, !filter.is_empty());
    write!(
        out,
        "<section>\n<div class=\"bar\"><h2 id=\"clusters-title\">Clusters</h2>\n\
         <form method=\"get\" action=\"./\" role=\"search\">\
         <label for=\"filter\">Name or endpoint contains</label>\
         <input id=\"filter\" name=\"filter\" type=\"search\" autocomplete=\"off\" \
         spellcheck=\"false\" maxlength=\"256\" value=\"{filter}\">\
         <button type=\"submit\">Filter</button></form></div>\n\
         <p class=\"quiet\"><span id=\"note\">{note}</span> \
         Everything is in <a href=\"snapshot\">snapshot</a>.</p>\n\
         <div class=\"scroll\"><table id=\"clusters\" aria-labelledby=\"clusters-title\">\n\
         <thead><tr><th scope=\"col\">Name</th><th scope=\"col\" class=\"number\">Active</th>\
         <th scope=\"col\" class=\"number\">Failures</th><th scope=\"col\">Endpoints</th></tr>\
         </thead>\n<tbody>\n",
        filter = Escaped(filter),
    )?;
    for cluster in status.clusters.iter().take(MAX_CLUSTERS) {
        write_cluster(out, cluster)?;
    }
    out.push_str("</tbody>\n</table></div>\n</section>\n");
    Ok(())
}

fn write_cluster(out: &mut String, cluster: &ClusterStatus) -> fmt::Result {
    write!(
        out,
        "<tr><th scope=\"row\" class=\"code\">{name}</th><td class=\"number\">{active}</td>\
         <td class=\"number\">{failures}</td><td><ul>",
        name = Escaped(&cluster.name),
        active = grouped(cluster.active),
        failures = grouped(cluster.failures),
    )?;
    for endpoint in cluster.endpoints.iter().take(MAX_ENDPOINTS) {
        write_endpoint(out, endpoint)?;
    }
    if cluster.endpoints.is_empty() {
        out.push_str("<li class=\"bad\">no endpoints</li>");
    }
    let more = cluster.endpoints.len().saturating_sub(MAX_ENDPOINTS);
    if more > 0 {
        write!(out, "<li class=\"quiet\">and {more} more</li>")?;
    }
    out.push_str("</ul></td></tr>\n");
    Ok(())
}

fn write_endpoint(out: &mut String, endpoint: &EndpointStatus) -> fmt::Result {
    write!(
        out,
        "<li><span class=\"code\">{address}</span> <span class=\"{class}\">{state}</span> \
         <span class=\"quiet\">",
        address = Escaped(&endpoint.address),
        class = class_of(endpoint.state),
        state = Escaped(endpoint.state),
    )?;
    if let Some(zone) = &endpoint.zone {
        write!(out, "zone {}, ", Escaped(zone))?;
    }
    write!(out, "{} active</span></li>", grouped(endpoint.active))
}

/// The class gives a state its color, and its sign for readers without color.
fn class_of(state: &str) -> &'static str {
    match state {
        "ready" | "healthy" | "up" => "good",
        "ejected" | "failed" | "down" | "unhealthy" => "bad",
        _ => "warn",
    }
}

/// Says how many clusters are shown out of how many.
fn note(shown: usize, total: usize, filtered: bool) -> String {
    let first = match shown < total {
        true => format!("The first {shown} of "),
        false => String::new(),
    };
    let matching = if filtered { " matching" } else { "" };
    format!("{first}{}{matching}.", grouped(total as u64))
}

/// Text with everything escaped that means something in HTML, in content and in quoted attributes.
struct Escaped<'a>(&'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                // HTML has no way to write a control character.
                c if c.is_control() => f.write_char('\u{fffd}')?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// Formats a count with thousands separators: `12,345`.
fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a number of bytes in binary units: `1.5 MiB`.
#[expect(clippy::cast_precision_loss, reason = "one decimal is shown")]
fn bytes(count: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let mut value = count as f64 / 1024.0;
    let mut unit = 0;
    // Not 1024: what rounds up to it is written in the next unit.
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// Formats a duration in its two largest units: `3 d 4 h`.
fn age(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{minutes} min {} s", seconds % 60),
        3600..86_400 => format!("{hours} h {} min", minutes % 60),
        _ => format!("{days} d {} h", hours % 24),
    }
}

#[cfg(test)]
mod tests;

//! A trace for people: one line per step, the outcome last.
//!
//! Prints what the report holds and adds nothing to it.

use std::fmt::{self, Write as _};

use super::report::{
    Acl, ClusterView, EndpointView, Limits, Match, TerminatedView, Trace, Verdict,
};

/// Width of the column that names the steps.
const STEP: usize = 11;

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&text(self))
    }
}

fn text(trace: &Trace) -> String {
    let mut out = String::new();
    step(&mut out, "asked", &asked(trace));
    step(&mut out, "gateway", &trace.state);
    if let Some(listener) = &trace.listener {
        let others = match listener.others.as_slice() {
            [] => String::new(),
            others => format!("; {} would take it too", others.join(", ")),
        };
        let (name, address, protocol) = (&listener.name, &listener.address, &listener.protocol);
        step(
            &mut out,
            "listener",
            &format!("{name} at {address} ({protocol}){others}"),
        );
    }
    snapshot(&mut out, trace);
    limits(&mut out, &trace.limits);
    if let Some(route) = &trace.route {
        let mut line = format!("{} leads to {}", route.matched, route.cluster);
        if route.matches != route.matched {
            let _ = write!(line, "; all of the route: {}", route.matches);
        }
        step(&mut out, "route", &line);
    }
    matches(&mut out, "also", &trace.also);
    matches(&mut out, "nearly", &trace.nearly);
    if let Some(acl) = &trace.acl {
        step(&mut out, "client", &client(acl, trace));
    }
    if let Some(terminated) = &trace.terminated {
        self::terminated(&mut out, terminated);
    }
    if let Some(cluster) = &trace.cluster {
        self::cluster(&mut out, cluster);
    }
    let outcome = match (trace.routed, &trace.reason) {
        (true, _) => "routed",
        (false, None) => "not routed",
        (false, Some(reason)) => &format!("not routed ({reason})"),
    };
    let _ = writeln!(out, "{outcome}: {}", trace.why);
    out
}

fn step(out: &mut String, name: &str, line: &str) {
    let _ = writeln!(out, "{name:STEP$}{line}");
}

fn asked(trace: &Trace) -> String {
    let asked = &trace.asked;
    let value = if asked.value.is_empty() {
        "(none)"
    } else {
        &asked.value
    };
    match asked.source {
        Some(source) => format!("{} {value}, from {source}", asked.kind),
        None => format!("{} {value}", asked.kind),
    }
}

fn snapshot(out: &mut String, trace: &Trace) {
    let of = &trace.snapshot;
    if !of.ready {
        step(out, "snapshot", &format!("none yet, from {}", of.source));
        return;
    }
    let line = format!(
        "generation {}, {} routes and {} clusters, from {}, confirmed {} ago",
        of.generation,
        of.routes,
        of.clusters,
        of.source,
        seconds(of.age_seconds)
    );
    step(out, "snapshot", &line);
    if let Some(refused) = &of.refused {
        step(out, "", &format!("what is there now is refused: {refused}"));
    }
}

fn limits(out: &mut String, limits: &Limits) {
    let (open, most) = (limits.connections, limits.max_connections);
    let mut parts = vec![format!("connections {open} of {most}")];
    match (limits.source_connections, limits.max_connections_per_source) {
        (_, 0) => {}
        (Some(open), most) => parts.push(format!("this client {open} of {most}")),
        (None, most) => parts.push(format!("each client {most}")),
    }
    let (within, bytes) = (limits.preamble_timeout_seconds, limits.preamble_bytes);
    let within = seconds(within);
    parts.push(format!("preamble within {within} and {bytes} bytes"));
    let origin = match limits.of_the_route {
        true => " (the route's)",
        false => "",
    };
    for (name, limit) in [
        ("idle", limits.idle_timeout_seconds),
        ("age", limits.max_connection_age_seconds),
    ] {
        if limit > 0.0 {
            parts.push(format!("{name} {}{origin}", seconds(limit)));
        }
    }
    step(out, "limits", &parts.join(", "));
}

fn matches(out: &mut String, name: &str, matches: &[Match]) {
    for (index, other) in matches.iter().enumerate() {
        let name = if index == 0 { name } else { "" };
        let (pattern, cluster, note) = (&other.pattern, &other.cluster, &other.note);
        step(out, name, &format!("{pattern} to {cluster}: {note}"));
    }
}

fn client(acl: &Acl, trace: &Trace) -> String {
    let list = acl.allow_sources.join(", ");
    let source = trace.asked.source.map(|source| source.to_string());
    let source = source.unwrap_or_default();
    match (acl.verdict, &acl.by) {
        (Verdict::Open, _) => "every client may use the route".to_owned(),
        (Verdict::Allowed, Some(by)) => format!("{source} is allowed, by {by}"),
        (Verdict::Allowed, None) => format!("{source} is allowed"),
        (Verdict::Denied, _) => format!("{source} is denied; allowed are {list}"),
        (Verdict::Depends, _) => format!("allowed are {list}; ask with --source"),
    }
}

fn terminated(out: &mut String, of: &TerminatedView) {
    if let Some(why) = &of.passed_through {
        step(
            out,
            "TLS",
            &format!("passed through, not terminated: {why}"),
        );
        return;
    }
    step(
        out,
        "TLS",
        "ends here; each request gets an endpoint of its own",
    );
    let note = of.note.iter().map(|note| format!("; {note}"));
    let note = note.collect::<String>();
    let line = match (&of.pool, &of.user) {
        (None, _) => {
            let why = of.note.as_deref().unwrap_or_default();
            format!("answered 400: {why}")
        }
        (Some(pool), None) => {
            format!(
                "no user; by the pool {pool}, with a token by the pool unproven until one is accepted, then token{note}"
            )
        }
        (Some(pool), Some(user)) => {
            let groups = match of.groups.as_slice() {
                [] => "no groups".to_owned(),
                groups => format!("groups {}", groups.join(", ")),
            };
            format!("user {user}, {groups}, by the pool {pool}, if the certificate is trusted")
        }
    };
    step(out, "requests", &line);
}

fn cluster(out: &mut String, cluster: &ClusterView) {
    let most = match cluster.max_connections {
        0 => String::new(),
        most => format!(" of {most}"),
    };
    let mut parts = vec![
        cluster.name.clone(),
        format!("{} connections{most}", cluster.connections),
        cluster.balance.clone(),
    ];
    if let (Some(zone), true) = (&cluster.zone, cluster.zone_aware) {
        parts.push(format!("zone {zone} first"));
    }
    let connect = seconds(cluster.connect_timeout_seconds);
    parts.push(format!("{connect} to connect"));
    parts.push(format!("{} retries", cluster.connect_retries));
    if let Some(version) = &cluster.send_proxy_protocol {
        parts.push(format!("told the client by PROXY {version}"));
    }
    let failures = cluster.connect_failures.iter();
    parts.extend(failures.map(|(reason, count)| format!("{count} {reason}")));
    step(out, "cluster", &parts.join(", "));
    for (index, endpoint) in cluster.endpoints.iter().enumerate() {
        let name = if index == 0 { "endpoints" } else { "" };
        step(out, name, &self::endpoint(endpoint));
    }
    let (shown, all) = (cluster.endpoints.len(), cluster.endpoints_total);
    if all > shown {
        step(out, "", &format!("  and {} more", all - shown));
    }
}

fn endpoint(endpoint: &EndpointView) -> String {
    let mark = if endpoint.candidate { '*' } else { ' ' };
    let mut first = format!("{mark} {}", endpoint.address);
    if let Some(resolved) = &endpoint.resolved {
        let resolved: Vec<String> = resolved.iter().map(ToString::to_string).collect();
        let _ = write!(first, " [{}]", resolved.join(", "));
    }
    let _ = write!(first, "  {}", endpoint.state);
    if let Some(left) = endpoint.ejected_for_seconds {
        let _ = write!(first, " for {}", seconds(left));
    }
    let mut parts = vec![first];
    parts.extend(endpoint.zone.iter().map(|zone| format!("zone {zone}")));
    if endpoint.priority > 0 {
        parts.push(format!("priority {}", endpoint.priority));
    }
    if endpoint.weight != 1 {
        parts.push(format!("weight {}", endpoint.weight));
    }
    parts.push(format!("{} connections", endpoint.connections));
    if endpoint.failures > 0 {
        parts.push(format!("{} failures in a row", endpoint.failures));
    }
    let note = endpoint.note.iter().map(|note| format!(": {note}"));
    parts.join(", ") + &note.collect::<String>()
}

/// Writes a time so that it is read at a glance.
fn seconds(seconds: f64) -> String {
    if seconds < 120.0 {
        let text = format!("{seconds:.1}");
        format!("{} s", text.strip_suffix(".0").unwrap_or(&text))
    } else if seconds < 7200.0 {
        format!("{:.0} min", seconds / 60.0)
    } else {
        format!("{:.0} h", seconds / 3600.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_short() {
        assert_eq!(seconds(0.04), "0 s");
        assert_eq!(seconds(12.34), "12.3 s");
        assert_eq!(seconds(120.0), "2 min");
        assert_eq!(seconds(86_400.0), "24 h");
    }

    #[test]
    fn an_empty_report_is_still_a_text() {
        let text = Trace::default().to_string();
        assert!(text.ends_with("not routed: \n"), "{text}");
        assert!(text.starts_with("asked"), "{text}");
    }
}

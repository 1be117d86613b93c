//! Where a connection would go, and why: what `sni-proxy trace` asks and `/trace` answers.
//!
//! ```text
//!     flags ─▶ Question ─▶ ask ══HTTP══▶ /trace ─▶ answer ─▶ Trace ─▶ JSON ══▶ text, exit code
//!                                                    └ table in effect, limits, endpoints: read
//! ```
//!
//! [`answer`] takes the steps of a connection in the same order, by the same look-ups, and stops
//! where a connection would be refused. It only reads: no connection is opened, no counter moves,
//! no balancer advances. What it says was true when it was asked.

mod ask;
mod endpoints;
mod matching;
mod question;
mod report;
mod terminated;
mod text;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use route::Route;
use serve::{HandoverReadiness, ListenerInfo, Phase, Reason};
use telemetry::admin::Extra;
use tokio::time::Instant;

pub use self::ask::AskError;
use self::ask::ask;
use self::question::BadQuestion;
pub(crate) use self::question::{Question, Subject, Target, WireGuardServer};
use self::report::Trace;
use self::report::{Acl, Limits, ListenerView, RouteView, SnapshotView, Verdict};
use crate::config::{Output, RouteSource, TraceFlags};
use crate::routing::Published;
use crate::worker::Shared;

/// Stands for a client that the question does not name, where an address must be given.
pub(crate) const UNKNOWN_CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// What `sni-proxy trace` prints, and whether a connection would be routed.
#[derive(Clone, Debug)]
pub struct Traced {
    /// Text or JSON, as the flags say; ends with a line feed.
    pub text: String,
    /// Whether a connection would be led to an endpoint.
    pub routed: bool,
}

/// Asks the gateway that the flags name.
///
/// # Errors
/// Why there is no answer.
pub async fn run(flags: &TraceFlags) -> Result<Traced, AskError> {
    let question = flags.question();
    let none = || AskError::Question(BadQuestion::not_one_target().to_string());
    let question = question.ok_or_else(none)?;
    let (trace, json) = ask(&flags.admin, &question).await?;
    Ok(Traced {
        text: match flags.output {
            Output::Json => json,
            Output::Text => trace.to_string(),
        },
        routed: trace.routed,
    })
}

/// Answers a question from what is in effect now.
///
/// # Errors
/// The question cannot be answered as it is: it names a listener that there is not, or one that
/// does not take what is asked for.
fn answer(
    shared: &Shared,
    listeners: &[ListenerInfo],
    handover: Option<&HandoverReadiness>,
    question: &Question,
) -> Result<Trace, BadQuestion> {
    let published = shared.routing.current();
    let mut trace = Trace {
        routed: false,
        reason: None,
        why: String::new(),
        asked: question.into(),
        state: state(shared, handover),
        listener: None,
        snapshot: snapshot_view(shared, &published),
        limits: limits(shared, question, None),
        route: None,
        also: Vec::new(),
        nearly: Vec::new(),
        acl: None,
        terminated: None,
        cluster: None,
    };
    let Some(index) = listener(shared, question)? else {
        let why = format!("no listener takes {}", question.target.kind());
        trace.refuse(None, why);
        return Ok(trace);
    };
    trace.listener = Some(listener_view(shared, listeners, question, index));
    let refusal = walk(shared, &published, question, index, &mut trace);
    match refusal {
        Some((reason, why)) => trace.refuse(Some(reason), why),
        None => trace.route_to_candidates(),
    }
    Ok(trace)
}

/// Answers a request to `/trace`.
pub(crate) fn respond(
    shared: &Shared,
    listeners: &[ListenerInfo],
    handover: Option<&HandoverReadiness>,
    query: Option<&str>,
) -> Extra {
    let question = Question::from_query(query);
    let answered = question.and_then(|own| answer(shared, listeners, handover, &own));
    match answered.map(|trace| serde_json::to_string(&trace)) {
        Ok(Ok(body)) => (200, "application/json", body + "\n"),
        Ok(Err(error)) => (500, "text/plain", format!("{error}\n")),
        Err(error) => (400, "text/plain", format!("{error}\n")),
    }
}

/// Takes the steps of a connection and records them; returns the refusal, if there is one.
fn walk(
    shared: &Shared,
    published: &Published,
    question: &Question,
    index: usize,
    trace: &mut Trace,
) -> Option<(Reason, String)> {
    let admission = limit_reached(shared, question);
    let found = matching::find(published, shared, question, index);
    (trace.also, trace.nearly) = (found.also, found.nearly);
    let Some(route) = found.route else {
        // The limits are looked at first, but what is asked for is the route.
        return Some(admission.unwrap_or((found.unknown, found.why)));
    };
    trace.limits = limits(shared, question, Some(route));
    trace.route = Some(RouteView {
        matched: found.matched,
        matches: route.matches().to_string(),
        cluster: route.cluster().name().to_string(),
    });
    let acl = acl(route, question.source);
    let denied = acl.verdict == Verdict::Denied;
    trace.acl = Some(acl);
    trace.terminated = terminated::view(route, question.certificate.as_ref());
    trace.cluster = Some(endpoints::view(published, route, question));
    if admission.is_some() {
        return admission;
    }
    if denied {
        let why = "the route's allowSources does not list the client";
        return Some((Reason::SourceDenied, why.to_owned()));
    }
    let cluster = route.cluster();
    let (active, most) = (cluster.active(), cluster.settings().max_connections);
    if most > 0 && active >= most {
        let why = format!("the cluster has {active} connections of at most {most}");
        return Some((Reason::Limit, why));
    }
    let empty = route.cluster().endpoints().is_empty();
    empty.then(|| {
        let why = "the cluster has no endpoints";
        (Reason::NoEndpoint, why.to_owned())
    })
}

/// Returns what refuses a connection whatever it asks for.
fn limit_reached(shared: &Shared, question: &Question) -> Option<(Reason, String)> {
    if matches!(question.target, Target::WireGuard(_)) {
        return None; // flows are not admitted by these limits
    }
    let admission = &shared.admission;
    let (open, most) = (admission.connections(), admission.limit());
    if open >= most {
        let why = format!("the process has {open} connections of at most {most}");
        return Some((Reason::Limit, why));
    }
    let source = question.source?;
    let (open, most) = (
        admission.source_connections(source),
        admission.source_limit(),
    );
    (most > 0 && open >= most).then(|| {
        let why = format!("this client has {open} connections of at most {most}");
        (Reason::SourceLimit, why)
    })
}

/// Finds the listener that is asked about: the one named, else the first that takes the target.
fn listener(shared: &Shared, question: &Question) -> Result<Option<usize>, BadQuestion> {
    let listeners = &shared.config.listeners;
    let Some(name) = &question.listener else {
        let takes = |own: &crate::config::ListenerConfig| question.target.is_for(own.protocol);
        return Ok(listeners.iter().position(takes));
    };
    let mut named = listeners.iter().enumerate();
    let Some((index, own)) = named.find(|(_, own)| own.name == *name) else {
        return Err(BadQuestion(format!("there is no listener {name:?}")));
    };
    let protocol = own.protocol;
    if question.target.is_for(protocol) {
        return Ok(Some(index));
    }
    let (protocol, asked) = (protocol.as_str(), question.target.kind());
    let why = format!("listener {name:?} ({protocol}) does not take {asked}");
    Err(BadQuestion(why))
}

fn listener_view(
    shared: &Shared,
    bound: &[ListenerInfo],
    question: &Question,
    index: usize,
) -> ListenerView {
    let others = shared.config.listeners.iter().enumerate();
    let others = others.filter(|(at, own)| *at != index && question.target.is_for(own.protocol));
    let own = bound.get(index);
    ListenerView {
        name: own.map_or_else(String::new, |own| own.name.clone()),
        address: own.map_or_else(String::new, |own| own.address.to_string()),
        protocol: own.map_or_else(String::new, |own| own.protocol.to_owned()),
        others: others.map(|(_, own)| own.name.clone()).collect(),
    }
}

fn state(shared: &Shared, handover: Option<&HandoverReadiness>) -> String {
    let phase = shared.accepting.drain.phase();
    let between = handover.map_or(Ok(()), HandoverReadiness::ready);
    if let (Phase::Serving, Err(why)) = (phase, between) {
        return why;
    }
    let state = match phase {
        Phase::Serving if shared.routing.has_routes().is_err() => "waiting for its first routes",
        Phase::Serving => "serving",
        Phase::Unready => "draining, still accepting",
        Phase::Closing => "draining, accepts no more but WireGuard flows beside another process",
        Phase::Cut => "ending",
    };
    state.to_owned()
}

fn snapshot_view(shared: &Shared, published: &Published) -> SnapshotView {
    let snapshot = &published.snapshot;
    let age = Instant::now().saturating_duration_since(shared.routing.confirmed());
    SnapshotView {
        generation: snapshot.generation(),
        age_seconds: age.as_secs_f64(),
        source: match &shared.config.source {
            RouteSource::File(file) => file.display().to_string(),
            RouteSource::Xds(xds) => format!("{} as {:?}", xds.server, xds.gateway),
        },
        ready: shared.routing.has_routes().is_ok(),
        refused: shared.routing.refusal(),
        clusters: snapshot.clusters().len(),
        routes: snapshot.routes().len(),
    }
}

fn limits(shared: &Shared, question: &Question, route: Option<&Arc<Route>>) -> Limits {
    let (admission, configured) = (&shared.admission, &shared.config.limits);
    let route = route.map(AsRef::as_ref);
    let [idle, age] = configured.of(route);
    let seconds = |limit: Option<std::time::Duration>| limit.unwrap_or_default().as_secs_f64();
    Limits {
        connections: admission.connections(),
        max_connections: admission.limit(),
        source_connections: question.source.map(|ip| admission.source_connections(ip)),
        max_connections_per_source: admission.source_limit(),
        preamble_timeout_seconds: configured.preamble_timeout.0.as_secs_f64(),
        preamble_bytes: configured.preamble_bytes.as_usize(),
        idle_timeout_seconds: seconds(idle),
        max_connection_age_seconds: seconds(age),
        of_the_route: route.is_some_and(|route| {
            route.idle_timeout().is_some() || route.max_connection_age().is_some()
        }),
    }
}

fn acl(route: &Route, source: Option<IpAddr>) -> Acl {
    let list = route.allow_sources();
    let by = source.and_then(|source| list.iter().find(|prefix| prefix.contains(source)));
    let verdict = match source {
        _ if list.is_empty() => Verdict::Open,
        None => Verdict::Depends,
        Some(_) if by.is_some() => Verdict::Allowed,
        Some(_) => Verdict::Denied,
    };
    Acl {
        verdict,
        by: by.map(ToString::to_string),
        allow_sources: list.iter().map(ToString::to_string).collect(),
    }
}

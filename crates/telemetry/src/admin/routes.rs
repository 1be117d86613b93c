//! From a request to its answer.

use std::sync::Arc;
use std::time::SystemTime;

use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Body, Bytes, Incoming};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use serde_json::Value;

use super::status::View;
use super::{ANSWER_TIMEOUT, Extra, Process};
use crate::http::{BODY_TIMEOUT, Handler};
use crate::logs::LogControl;
use crate::metrics::{Exposition, Registry};
use crate::page;

/// The largest request body; log directives are the only body there is.
pub(super) const MAX_BODY_BYTES: usize = 4 << 10;
/// How many connections are listed by default.
const DEFAULT_CONNECTIONS: usize = 1000;
/// The most that are listed; some 4 MiB of JSON.
const MAX_CONNECTIONS_LISTED: usize = 10_000;

const BY_NAME: &str = "Host: neither an address nor localhost\n";

type Answer = Response<Full<Bytes>>;

#[derive(Clone)]
pub(super) struct Routes {
    pub(super) process: Arc<dyn Process>,
    pub(super) registry: Registry,
    pub(super) log: LogControl,
    pub(super) admin: bool,
    /// Whether browsers reach it: not by a Unix socket.
    pub(super) by_network: bool,
}

/// Returns the methods of an endpoint; `None` where there is none.
fn allowed(path: &str, admin: bool) -> Option<&'static str> {
    match path {
        "/healthz" | "/metrics" | "/ready" | "/readyz" => Some("GET, HEAD"),
        _ if !admin => None,
        "/" | "/config" | "/connections" | "/snapshot" | "/status" => Some("GET, HEAD"),
        "/drain" => Some("POST"),
        "/log" => Some("GET, HEAD, PUT"),
        _ => None,
    }
}

impl Handler for Routes {
    fn is_probe(&self, path: &str) -> bool {
        is_probe(path)
    }

    async fn handle(&self, request: Request<Incoming>) -> Answer {
        self.answer(request).await
    }
}

impl Routes {
    async fn answer<B>(&self, request: Request<B>) -> Answer
    where
        B: Body<Data = Bytes, Error: std::error::Error + Send + Sync + 'static> + Send,
    {
        let (head, body) = request.into_parts();
        // The server itself omits the body of an answer to HEAD.
        let method = if head.method == Method::HEAD {
            Method::GET
        } else {
            head.method.clone()
        };
        let (path, query) = (head.uri.path(), head.uri.query());
        let private = self.admin && self.by_network && !is_probe(path) && path != "/metrics";
        if private && is_rebound(&head.headers) {
            return text(StatusCode::FORBIDDEN, BY_NAME);
        }
        if let Some(extra) = self.extra(&method, path, query) {
            return own_answer(extra);
        }
        let Some(allowed) = allowed(path, self.admin) else {
            return text(StatusCode::NOT_FOUND, "no such endpoint\n");
        };
        if !allowed.split(", ").any(|word| word == method.as_str()) {
            let answer = text(StatusCode::METHOD_NOT_ALLOWED, "method not allowed\n");
            return with(answer, header::ALLOW, allowed);
        }
        if method != Method::GET && is_cross_site(&head.headers) {
            return text(StatusCode::FORBIDDEN, "not for another site's pages\n");
        }
        match path {
            "/healthz" => probe(self.process.healthy()),
            "/ready" | "/readyz" => probe(self.process.ready()),
            "/metrics" => self.metrics(&head.headers),
            "/config" => json(&self.process.config()),
            "/connections" => self.connections(query).await,
            "/drain" => self.drain(),
            "/log" if method == Method::PUT => self.set_log(body).await,
            "/log" => text(StatusCode::OK, format!("{}\n", self.log.current())),
            "/snapshot" => json(&self.process.snapshot()),
            "/status" => self.status(query),
            _ => self.page(query),
        }
    }

    fn extra(&self, method: &Method, path: &str, query: Option<&str>) -> Option<Extra> {
        let method = method.as_str();
        let extra = self.process.extra(method, path, query);
        if extra.is_some() || !self.admin {
            return extra;
        }
        self.process.extra_admin(method, path, query)
    }

    async fn connections(&self, query: Option<&str>) -> Answer {
        let limit = match parameter(query, "limit").map(|limit| limit.parse()) {
            None => DEFAULT_CONNECTIONS,
            Some(Ok(limit)) => MAX_CONNECTIONS_LISTED.min(limit),
            Some(Err(_)) => return text(StatusCode::BAD_REQUEST, "limit: not a number\n"),
        };
        match tokio::time::timeout(ANSWER_TIMEOUT, self.process.connections(limit)).await {
            Ok(connections) => json(&connections),
            Err(_) => text(
                StatusCode::GATEWAY_TIMEOUT,
                "the workers did not answer in time\n",
            ),
        }
    }

    fn drain(&self) -> Answer {
        tracing::info!("drain requested");
        self.process.drain();
        text(StatusCode::OK, "draining\n")
    }

    async fn set_log<B>(&self, body: B) -> Answer
    where
        B: Body<Data = Bytes, Error: std::error::Error + Send + Sync + 'static> + Send,
    {
        let body = match read_body(body).await {
            Ok(body) => body,
            Err(answer) => return answer,
        };
        let Ok(directives) = str::from_utf8(&body) else {
            return text(StatusCode::BAD_REQUEST, "log directives: not UTF-8\n");
        };
        if let Err(error) = self.log.set(directives.trim()) {
            return text(
                StatusCode::BAD_REQUEST,
                format!("{}\n", crate::chain(&error)),
            );
        }
        let current = self.log.current();
        tracing::info!(directives = current, "log filter changed");
        text(StatusCode::OK, format!("{current}\n"))
    }

    fn metrics(&self, headers: &HeaderMap) -> Answer {
        let accept: Vec<_> = headers
            .get_all(header::ACCEPT)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .collect();
        let exposition = Exposition::negotiate(&accept.join(","));
        let body = self.registry.encode(exposition);
        respond(StatusCode::OK, exposition.content_type(), body)
    }

    fn status(&self, query: Option<&str>) -> Answer {
        match serde_json::to_value(self.view(query)) {
            Ok(value) => json(&value),
            Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
        }
    }

    fn page(&self, query: Option<&str>) -> Answer {
        let filter = filter(query).unwrap_or_default();
        let Ok(nonce) = page::nonce() else {
            return text(StatusCode::INTERNAL_SERVER_ERROR, "no random numbers\n");
        };
        let body = page::render(&self.view(query), &filter, SystemTime::now(), &nonce);
        let mut answer = respond(StatusCode::OK, "text/html; charset=utf-8", body);
        if let Ok(policy) = HeaderValue::try_from(page::policy(&nonce)) {
            answer
                .headers_mut()
                .insert(header::CONTENT_SECURITY_POLICY, policy);
        }
        with(answer, header::REFERRER_POLICY, "no-referrer")
    }

    fn view(&self, query: Option<&str>) -> View {
        let mut status = match filter(query) {
            Some(filter) => self.process.status_of(&filter),
            None => self.process.status(),
        };
        status.clusters.truncate(page::MAX_CLUSTERS);
        let not_ready = self.process.ready().err();
        View {
            binary: self.process.binary(),
            not_ready,
            status,
        }
    }
}

/// Returns whether `path` is a probe's, including everything below it: `/readyz/shoot--a`. A
/// program need not serve it; an answer there is one line.
pub(crate) fn is_probe(path: &str) -> bool {
    let first = path
        .strip_prefix('/')
        .and_then(|path| path.split('/').next());
    first.is_some_and(|name| matches!(name, "healthz" | "livez" | "ready" | "readyz" | "startupz"))
}

/// Reads a small body.
async fn read_body<B>(body: B) -> Result<Bytes, Answer>
where
    B: Body<Data = Bytes, Error: std::error::Error + Send + Sync + 'static> + Send,
{
    let whole = Box::pin(Limited::new(body, MAX_BODY_BYTES).collect());
    match tokio::time::timeout(BODY_TIMEOUT, whole).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            Err(text(StatusCode::PAYLOAD_TOO_LARGE, "at most 4096 bytes\n"))
        }
        Ok(Err(_)) => Err(text(StatusCode::BAD_REQUEST, "the body ended early\n")),
        Err(_) => Err(text(
            StatusCode::REQUEST_TIMEOUT,
            "the body did not arrive in time\n",
        )),
    }
}

/// Returns whether a browser marks this request as made by a page of another site. Other clients send
/// neither header.
fn is_cross_site(headers: &HeaderMap) -> bool {
    let value = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    if let Some(site) = value(HeaderName::from_static("sec-fetch-site")) {
        return !matches!(site, "same-origin" | "none");
    }
    value(header::ORIGIN).is_some_and(|origin| {
        let authority = origin.split_once("://").map(|(_, authority)| authority);
        authority.is_none() || authority != value(header::HOST)
    })
}

/// Returns whether a request may come from a page of a domain that resolves to this address and so
/// shares its origin (DNS rebinding). A browser always names the domain.
fn is_rebound(headers: &HeaderMap) -> bool {
    let mut hosts = headers.get_all(header::HOST).iter();
    hosts.any(|host| !host.to_str().is_ok_and(is_address_or_localhost))
}

fn is_address_or_localhost(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .unwrap_or(name);
    name.eq_ignore_ascii_case("localhost") || address.parse::<std::net::IpAddr>().is_ok()
}

fn filter(query: Option<&str>) -> Option<String> {
    let filter = parameter(query, "filter")?;
    let filter = filter.trim();
    (!filter.is_empty()).then(|| filter.to_owned())
}

/// Finds a parameter in a query, decoded as forms encode it.
pub fn parameter(query: Option<&str>, name: &str) -> Option<String> {
    let mut pairs = form_urlencoded::parse(query?.as_bytes());
    let found = pairs.find(|(key, _)| key == name);
    found.map(|(_, value)| value.into_owned())
}

fn probe(state: Result<(), String>) -> Answer {
    match state {
        Ok(()) => text(StatusCode::OK, "ok"),
        Err(reason) => text(StatusCode::SERVICE_UNAVAILABLE, reason),
    }
}

fn own_answer((status, content_type, body): Extra) -> Answer {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    respond(status, content_type, body)
}

fn json(value: &Value) -> Answer {
    let mut body = value.to_string();
    body.push('\n');
    respond(StatusCode::OK, "application/json", body)
}

fn text(status: StatusCode, body: impl Into<String>) -> Answer {
    respond(status, "text/plain; charset=utf-8", body.into())
}

fn respond(status: StatusCode, content_type: &'static str, body: String) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::from(body)));
    *answer.status_mut() = status;
    let answer = with(answer, header::CONTENT_TYPE, content_type);
    let answer = with(answer, header::CACHE_CONTROL, "no-store");
    with(answer, header::X_CONTENT_TYPE_OPTIONS, "nosniff")
}

fn with(mut answer: Answer, name: HeaderName, value: &'static str) -> Answer {
    // A content type comes from the binary; one that is not a header value is omitted.
    if let Ok(value) = HeaderValue::from_str(value) {
        answer.headers_mut().insert(name, value);
    }
    answer
}

#[cfg(test)]
mod tests;

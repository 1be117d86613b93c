//! A client's connection, as its requests see it.
//!
//! ```text
//!     request ─▶ today's route ─▶ who it is from ─▶ head made clean ─▶ a pool ─▶ answer
//!                  └─ changed: served still, and the connection is to end
//! ```

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::uri::Authority;
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri, Version, header};
use hyper::upgrade::OnUpgrade;
use route::Route;
use serve::{Phase, Reason};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::body::{Answer, ResponseBody, Upstream};
use super::client_body::ClientBody;
use super::exchange::{Ending, Exchanges, Limits, Open};
use super::identity::{ClientIdentity, Refused, Verified};
use super::metrics::Protocol;
use super::request::{RequestBody, head_size};
use super::secrets::Secrets;
use super::upgraded::Upgraded;
use super::upstream::{Active, Caller, RequestContext};
use super::{HEAD_BYTES, Termination, headers, status};
use crate::preamble::RouteKey;
use crate::worker::Worker;

/// The connection.
pub(super) struct Client {
    /// The certificate that it showed.
    pub(super) identity: Option<ClientIdentity>,
    pub(super) protocol: Protocol,
    pub(super) exchanges: Rc<Exchanges>,
    pub(super) listener: usize,
    pub(super) route_key: RouteKey,
    pub(super) termination: Arc<Termination>,
    pub(super) worker: Rc<Worker>,
    pub(super) address: std::net::IpAddr,
    /// When the first bytes of HTTP must have come.
    pub(super) begins_by: Instant,
    /// When the connection must end.
    pub(super) deadline: Option<Instant>,
    /// How long it may be without a request, or, upgraded, without a byte.
    pub(super) idle: Option<Duration>,
    /// Its route has changed: the connection is to end.
    pub(super) stale: Notify,
    /// An API server has accepted a token of it, and refused none since.
    pub(super) proven: Cell<bool>,
    pub(super) upgraded: RefCell<Option<Upgraded>>,
}

/// What a server answered.
enum Forwarded {
    Response(Response<Answer>, Active),
    Upgraded(Response<Answer>, [OnUpgrade; 2], Active),
}

impl Client {
    /// Waits until the gateway has a reason to end the connection, and returns it. Cancel-safe.
    pub(super) async fn ending(&self) -> (Reason, Option<Ending>) {
        let limits = self.limits(self.idle, self.deadline);
        let drain = &self.worker.shared.accepting.drain;
        tokio::select! {
            () = drain.reached(Phase::Closing) => (Reason::Drained, None),
            () = self.stale.notified() => (Reason::Closed, None),
            ending = self.exchanges.ending(limits) => match ending {
                Ending::Aged => (Reason::MaxAge, None),
                Ending::Idle => (Reason::IdleTimeout, Some(ending)),
                Ending::Overdue => (Reason::MaxAge, Some(ending)),
            },
        }
    }

    /// Waits until the requests of a connection that ends for `reason` have ended; returns whether they did in time.
    pub(super) async fn finished<F: Future>(
        &self,
        reason: Reason,
        connection: Pin<&mut F>,
    ) -> bool {
        let rest = self.worker.shared.config.drain.timeout.0;
        let cut = if reason == Reason::Drained {
            None // the process says when it cuts
        } else if reason == Reason::MaxAge {
            Some(Instant::now() + rest)
        } else {
            self.deadline.map(|deadline| deadline + rest) // each request has its own limit
        };
        tokio::select! {
            _ = connection => true,
            _ = self.exchanges.ending(self.limits(None, cut)) => false,
        }
    }

    fn limits(&self, idle: Option<Duration>, deadline: Option<Instant>) -> Limits {
        Limits {
            idle,
            request: self.termination.params.stream_timeout,
            deadline,
        }
    }

    pub(super) async fn answer(
        &self,
        request: Request<ClientBody>,
        open: Open,
    ) -> Response<ResponseBody> {
        let limit = open.started() + self.termination.params.stream_timeout;
        let forwarded = timeout_at(limit, self.forward(request, &open)).await;
        let late = |_| Err(status::of_upstream(StatusCode::GATEWAY_TIMEOUT));
        let mut response = match forwarded.unwrap_or_else(late) {
            Ok(Forwarded::Response(response, active)) => {
                open.answered(response.status());
                response
                    .map(|body| ResponseBody::Upstream(Box::new(Upstream::new(body, active, open))))
            }
            Ok(Forwarded::Upgraded(response, [down, up], active)) => {
                open.answered(response.status());
                open.set_upgraded();
                *self.upgraded.borrow_mut() = Some(Upgraded {
                    down,
                    up,
                    _active: active,
                    open,
                });
                response.map(|_| ResponseBody::Own(None))
            }
            Err(refusal) => {
                open.answered(refusal.status);
                refusal.response(open)
            }
        };
        let headers = response.headers_mut();
        if let Some(value) = &self.termination.params.hsts {
            headers.insert(header::STRICT_TRANSPORT_SECURITY, value.clone());
        }
        // Also one that is passed on without (RFC 9110 section 6.6.1).
        if !headers.contains_key(header::DATE)
            && let Some(date) = telemetry::http_date(SystemTime::now())
            && let Ok(date) = date.try_into()
        {
            headers.insert(header::DATE, date);
        }
        response
    }

    /// Finds today's route again, and what it terminates with: both change while a connection lives. After that
    /// requests are served as today's route says, and the client is asked to connect anew; a route that is passed
    /// through by now ends its old connections with what they began with. One that has another certificate, or is
    /// passed through to another cluster, is not what the client accepted: it takes none of its requests.
    fn route(
        &self,
        authority: &Authority,
    ) -> Result<(Arc<Route>, Arc<Termination>), status::Refusal> {
        let routing = self.worker.shared.routing.current();
        let table = routing.snapshot.on(self.listener);
        let route = match &self.route_key {
            RouteKey::Connect(value) => table.by_connect(value),
            RouteKey::ServerName(name) => table.by_server_name(name.as_deref()),
        };
        let gone = || self.gone("the route of this connection is gone");
        let route = route.filter(|route| route.allows(self.address));
        let route = route.ok_or_else(gone)?;
        let today: Option<Arc<Termination>> = route.handler().and_then(route::Handler::get);
        let begun = &self.termination.params;
        let is_trusted = match &today {
            Some(own) => own.params.tls.certificate == begun.tls.certificate,
            None => **route.cluster().name() == *begun.cluster,
        };
        // No route that terminates has a cluster with a PROXY header.
        if !is_trusted || route.cluster().settings().send_proxy_protocol.is_some() {
            return Err(gone());
        }
        let today = today.filter(|own| own.secrets.current().is_some());
        let own = today.as_ref().unwrap_or(&self.termination);
        if today.is_none() || !Arc::ptr_eq(own, &self.termination) {
            self.stale.notify_one();
        }
        let is_of = |host: &str| {
            let of_host = table.by_server_name(Some(host));
            of_host.is_some_and(|of_host| Arc::ptr_eq(of_host, route))
        };
        if matches!(self.route_key, RouteKey::ServerName(_)) && !is_of(authority.host()) {
            let text = "the host is not the one of this connection";
            return Err(status::refuse(StatusCode::MISDIRECTED_REQUEST, text));
        }
        Ok((Arc::clone(route), Arc::clone(own)))
    }

    fn verify<'a>(
        &self,
        identity: &'a ClientIdentity,
        secrets: &Secrets,
    ) -> Result<&'a Verified, status::Refusal> {
        let now = SystemTime::now();
        let verified = identity.verify(secrets, now);
        let verified = verified.map_err(|refused| match refused {
            Refused::Subject => {
                let text = "the certificate's subject names no user that can be passed on";
                status::refuse(StatusCode::BAD_REQUEST, text)
            }
            Refused::Untrusted => {
                let text = "the certificate has ended, or is no longer trusted";
                status::refuse(StatusCode::UNAUTHORIZED, text)
            }
        })?;
        // API servers verify the gateway's for each request as well: they would refuse the client for it.
        match secrets.tls.identity_ends {
            Some(ends) if ends < now => Err(self.gone("the gateway's own certificate has ended")),
            _ => Ok(verified),
        }
    }

    /// Asks the client to connect anew.
    fn gone(&self, text: &'static str) -> status::Refusal {
        self.stale.notify_one();
        status::refuse(StatusCode::SERVICE_UNAVAILABLE, text)
    }

    /// Sends a request on; an upgrade that the server agrees to has no body.
    async fn forward(
        &self,
        mut request: Request<ClientBody>,
        open: &Open,
    ) -> Result<Forwarded, status::Refusal> {
        if head_size(&request) > HEAD_BYTES {
            let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
            return Err(status::of_head(status));
        }
        let authority = headers::authority(&request)
            .map_err(|status| status::refuse(status, "the host is not one name"))?;
        let bad = |text| status::refuse(StatusCode::BAD_REQUEST, text);
        let authority = authority.ok_or_else(|| bad("no host"))?;
        let (route, own) = self.route(&authority)?;
        if request.method() == Method::CONNECT {
            return Err(bad("CONNECT is not served"));
        }
        if headers::is_coded(request.headers()) {
            return Err(bad("a body with a transfer coding is not served"));
        }
        let secrets = own.secrets.last();
        let secrets = secrets.ok_or_else(status::unavailable)?;
        let verified = self.identity.as_ref();
        let verified = verified.map(|identity| self.verify(identity, &secrets));
        let verified = verified.transpose()?;
        let upgrade = (request.version() == Version::HTTP_11)
            .then(|| headers::upgrade(request.headers()))
            .flatten();
        headers::clean(request.headers_mut(), self.address);
        let has_token = headers::has_token(request.headers());
        let caller = match verified {
            Some(verified) => Caller::Verified(verified),
            None if !has_token => Caller::Anonymous,
            None if self.proven.get() => Caller::Token,
            None => Caller::Unproven,
        };
        let path = request.uri().path_and_query().cloned();
        // What is for the server as a whole has none (RFC 9110 section 7.1).
        if path
            .as_ref()
            .is_some_and(|path| !path.as_str().starts_with('/'))
        {
            return Err(bad("no path"));
        }
        let uri = Uri::builder().scheme("https").authority(authority);
        let uri = uri.path_and_query(path.as_ref().map_or("/", |path| path.as_str()));
        let uri = uri.build().map_err(|_| bad("no target"))?;
        *request.uri_mut() = uri;
        if let Some(protocol) = &upgrade {
            let headers = request.headers_mut();
            headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
            headers.insert(header::UPGRADE, protocol.clone());
        }
        let down = upgrade.is_some().then(|| hyper::upgrade::on(&mut request));
        let context = RequestContext {
            cluster: route.cluster(),
            server_name: &own.params.server_name,
            secrets: &secrets,
            client: self.address,
            exchange: open.exchange(),
            worker: &self.worker,
        };
        let request = request.map(|body| RequestBody::new(body, open.exchange()));
        let pools = self.worker.terminations.of(&own);
        let sent = pools
            .send(&context, caller, request, upgrade.is_some())
            .await;
        let (mut response, active) = sent.map_err(|status| match open.fault() {
            Some(status) => status::refuse(status, "the request's body did not come as a whole"),
            None => status::of_upstream(status),
        })?;
        if has_token && let Some(accepted) = accepts_token(response.status()) {
            self.proven.set(accepted);
        }
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let agreed = response.headers().get(header::UPGRADE);
            let same = |(agreed, asked): (&HeaderValue, &HeaderValue)| {
                agreed.as_bytes().eq_ignore_ascii_case(asked.as_bytes())
            };
            let Some(down) = down.filter(|_| agreed.zip(upgrade.as_ref()).is_some_and(same)) else {
                return Err(status::of_upstream(StatusCode::BAD_GATEWAY));
            };
            let up = hyper::upgrade::on(&mut response);
            return Ok(Forwarded::Upgraded(response, [down, up], active));
        }
        headers::remove_hop_by_hop(response.headers_mut());
        *response.version_mut() = Version::HTTP_11;
        Ok(Forwarded::Response(response, active))
    }
}

/// Returns whether an API server has accepted the token of a request, where its answer says so: 400, 429 and 5xx may
/// come ahead of that.
fn accepts_token(status: StatusCode) -> Option<bool> {
    match status {
        StatusCode::UNAUTHORIZED => Some(false),
        StatusCode::SWITCHING_PROTOCOLS | StatusCode::FORBIDDEN => Some(true),
        _ => status.is_success().then_some(true),
    }
}

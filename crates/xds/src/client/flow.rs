//! One stream from its first request to its end.
//!
//! ```text
//!   responses ──gather──▶ decode ──▶ held.settle ──▶ names that are wanted now, then verdicts
//! ```
//!
//! Subscriptions go out before the verdicts, so that a server knows them when it learns
//! that clusters were accepted.

use std::collections::VecDeque;

use futures_util::future::OptionFuture;
use prost::Message;
use telemetry::lock;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout_at};
use tonic::{Status, Streaming};

use super::connection::End;
use super::held::HeldResources;
use super::metrics::ClientMetrics;
use super::secrets::is_secret;
use super::session::{Request, Session, Variant};
use super::update::{Response, Update, decode_response};
use super::{ClientLimits, ClientParams, Sink};
use crate::grpc::{Channel, DELTA_PATH, FULL_PATH};
use crate::proto::discovery::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};

/// Opens a stream and serves it to its end.
pub(super) async fn run(
    params: &ClientParams,
    channel: Channel,
    variant: Variant,
    held: &mut HeldResources,
    sink: &mut impl Sink,
    metrics: &ClientMetrics,
) -> End {
    let (session, first) = Session::begin(variant, &params.node, &params.cluster, held);
    let flow = Flow {
        limits: &params.limits,
        session,
        held,
        sink,
        metrics,
        outbox: VecDeque::new(),
        answered: false,
        missing_since: None,
        more_since: None,
    };
    match variant {
        Variant::Delta => {
            flow.open::<DeltaDiscoveryRequest, DeltaDiscoveryResponse>(
                params, channel, DELTA_PATH, first,
            )
            .await
        }
        Variant::Full => {
            flow.open::<DiscoveryRequest, DiscoveryResponse>(params, channel, FULL_PATH, first)
                .await
        }
    }
}

struct Flow<'a, S> {
    limits: &'a ClientLimits,
    session: Session,
    held: &'a mut HeldResources,
    sink: &'a mut S,
    metrics: &'a ClientMetrics,
    /// Requests not sent yet; while it is full, nothing more is read.
    outbox: VecDeque<Request>,
    /// Whether the server responded.
    answered: bool,
    /// Since when nothing of what is missing has come.
    missing_since: Option<Instant>,
    /// Since when the server says that more follows.
    more_since: Option<Instant>,
}

impl<S: Sink> Flow<'_, S> {
    async fn open<Q, R>(
        mut self,
        params: &ClientParams,
        mut channel: Channel,
        path: &'static str,
        first: Vec<Request>,
    ) -> End
    where
        Q: From<Request> + Message + 'static,
        R: Default + Into<Response> + Message + 'static,
    {
        let (requests, receiver) = mpsc::channel::<Q>(OUTBOX.max(first.len()));
        for request in first {
            // The channel has capacity for all of them.
            let _ = requests.try_send(request.into());
        }
        let most = self.limits.message_bytes;
        let origin = params.server.origin();
        let opened = channel.open::<Q, R>(origin, path, receiver, most).await;
        let end = match opened {
            Ok(responses) => self.serve(responses, &requests).await,
            Err(status) => Err(status),
        };
        let answered = self.answered;
        match end {
            Ok(()) => End::Closed { answered },
            Err(status) => End::Status { status, answered },
        }
    }

    async fn serve<Q: From<Request>, R: Into<Response> + Message>(
        &mut self,
        mut responses: Streaming<R>,
        requests: &mpsc::Sender<Q>,
    ) -> Result<(), Status> {
        let mut confirm = interval(self.limits.confirm);
        confirm.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.wait(false);
        loop {
            let missing = self
                .missing_since
                .map(|since| sleep_until(since + self.limits.missing));
            let more = self
                .more_since
                .map(|since| sleep_until(since + self.limits.more));
            tokio::select! {
                permit = requests.reserve(), if !self.outbox.is_empty() => {
                    let permit = permit.map_err(|_| Status::unavailable("the connection ended"))?;
                    if let Some(request) = self.outbox.pop_front() {
                        permit.send(request.into());
                    }
                }
                response = responses.message(), if self.outbox.len() < OUTBOX => {
                    let Some(response) = response? else {
                        return Ok(());
                    };
                    let more = self.gather(response, &mut responses).await;
                    self.take(more).await;
                }
                _ = confirm.tick() => self.confirm(),
                Some(()) = OptionFuture::from(missing) => self.apply_without_missing(),
                Some(()) = OptionFuture::from(more) => self.apply_without_more(),
            }
        }
    }

    /// Gathers responses that belong to the same change.
    async fn gather<R: Into<Response> + Message>(
        &mut self,
        first: R,
        responses: &mut Streaming<R>,
    ) -> Vec<Response> {
        if !std::mem::replace(&mut self.answered, true) {
            self.metrics.connect("ok");
            self.metrics.connected.set(1);
        }
        let end = Instant::now() + self.limits.gather;
        let mut bytes = first.encoded_len();
        let mut gathered = vec![first.into()];
        while bytes < self.limits.gather_bytes && gathered.len() < OUTBOX {
            let gap = (Instant::now() + self.limits.gather / GAPS).min(end);
            let Ok(next) = timeout_at(gap, responses.message()).await else {
                break;
            };
            // The end of the stream is met again, once these are applied.
            let Ok(Some(next)) = next else {
                break;
            };
            bytes += next.encoded_len();
            gathered.push(next.into());
        }
        gathered
    }

    async fn take(&mut self, responses: Vec<Response>) {
        let mut updates: Vec<Update> = Vec::with_capacity(responses.len());
        for response in responses {
            match decode_response(response, &self.held.own).await {
                // Only what was asked for: never over a stream that anyone may have opened.
                Some(update) if is_secret(&update) && !self.held.secrets.wanted => {
                    tracing::debug!("ignoring secrets, which are not subscribed");
                }
                Some(update) => updates.push(update),
                None => tracing::debug!("ignoring a response of a type that is not subscribed"),
            }
        }
        let missing = self.held.missing.clone();
        let verdicts = self.held.settle(&updates, self.sink);
        self.outbox.extend(self.session.subscribe(self.held));
        for (update, verdict) in updates.iter().zip(&verdicts) {
            self.metrics.response(update.kind, verdict.is_ok());
            if let Err(why) = verdict {
                self.sink.refused(why);
                tracing::warn!(
                    kind = update.kind.as_str(),
                    why,
                    "resources refused, keeping the current routes"
                );
            }
            let answer = self.session.answer(update, verdict);
            self.outbox.push_back(answer);
        }
        self.wait(!missing.is_subset(&self.held.missing));
        self.confirm();
    }

    /// Updates the timeouts; `progress` when some missing resources arrived.
    fn wait(&mut self, progress: bool) {
        let now = Instant::now();
        let since = self.missing_since.filter(|_| !progress).unwrap_or(now);
        self.missing_since = self.held.waits_for_missing().then_some(since);
        let since = self.more_since.unwrap_or(now);
        self.more_since = self.held.more_follows.then_some(since);
    }

    fn apply_without_more(&mut self) {
        tracing::warn!("timed out waiting for the rest of an update, applying what arrived");
        if let Err(why) = self.held.apply_without_more(self.sink) {
            tracing::warn!(why, "resources do not form a valid routing table");
        }
        self.more_since = None;
        self.wait(false);
    }

    fn apply_without_missing(&mut self) {
        self.missing_since = None;
        tracing::warn!("timed out waiting for referenced resources, continuing without them");
        if let Err(why) = self.held.apply_without_missing(self.sink) {
            tracing::warn!(why, "resources do not form a valid routing table");
        }
    }

    fn confirm(&mut self) {
        if self.session.is_current() && self.held.is_current() {
            self.sink.confirmed();
            lock(&self.held.unsaved).confirmed = true;
        }
    }
}

/// Requests that wait for the connection; enough for an answer to each response of a large sync.
const OUTBOX: usize = 256;

/// A fifth of the time to gather without a response ends it.
const GAPS: u32 = 5;

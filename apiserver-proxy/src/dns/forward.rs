//! Asks other servers, in order, and takes the first answer that is one.
//!
//! ```text
//!     0 s      first server ───────────────▶ answer, or silence
//!     1 s      next server as well ────────▶        a failure starts the next at once
//!     …        each at most twice, those that failed lately last
//!     5 s      given up: SERVFAIL
//! ```
//!
//! A server that is only slow keeps its chance while others are asked. Nothing is cached. One asker
//! leaves as many questions to others as it has under way.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

use futures_util::stream::{FuturesUnordered, StreamExt};
use hickory_server::proto::op::{Message, Query, ResponseCode};
use telemetry::{FairPermits, lock};
use tokio::time::{Instant, sleep_until, timeout};

use super::Limits;
use super::exchange::{ExchangeError, exchange};

/// How often one server is asked one question; the second time is for a lost datagram.
const ROUNDS: usize = 2;

/// Asks other servers, within the limits.
#[derive(Debug)]
pub(super) struct Forwarder {
    upstreams: Vec<Upstream>,
    permits: Arc<FairPermits>,
    limits: Limits,
}

/// One question and the header bits that travel with it.
#[derive(Clone, Debug)]
pub(super) struct Question {
    /// The address of the asker.
    pub(super) asker: IpAddr,
    /// Whether it came over TCP.
    pub(super) over_tcp: bool,
    pub(super) query: Query,
    pub(super) recursion_desired: bool,
    pub(super) authentic_data: bool,
    pub(super) checking_disabled: bool,
    /// The DO bit of the asker's OPT record; `None` when there was no such record.
    pub(super) dnssec_ok: Option<bool>,
}

impl Forwarder {
    /// Makes a forwarder to `servers`, best first; `None` when there are none.
    pub(super) fn new(servers: &[SocketAddr], limits: &Limits) -> Option<Self> {
        let upstreams: Vec<Upstream> = servers.iter().copied().map(Upstream::new).collect();
        (!upstreams.is_empty()).then(|| Self {
            upstreams,
            permits: FairPermits::new(limits.questions),
            limits: limits.clone(),
        })
    }

    /// Returns the first good answer, else the first refusal or failure that a server reported;
    /// `None` when no server answered in time or too many questions are under way, of this asker
    /// or in all. Cancel-safe.
    pub(super) async fn ask(&self, question: &Question) -> Option<Message> {
        let _permit = self.permits.take(question.asker)?;
        timeout(self.limits.question, self.ask_in_turn(question))
            .await
            .ok()
            .flatten()
    }

    async fn ask_in_turn(&self, question: &Question) -> Option<Message> {
        let order = self.order();
        let mut turns = order.iter().cycle().take(order.len() * ROUNDS);
        let mut asked: Vec<(&Upstream, Instant)> = Vec::new();
        let mut under_way = FuturesUnordered::new();
        let mut second_best = None;
        let mut next_turn = Instant::now();
        let mut more = true;
        loop {
            tokio::select! {
                biased;
                Some((upstream, answer)) = under_way.next() => match answer {
                    Ok(message) if is_answer(&message) => {
                        self.judge(upstream, &asked);
                        return Some(message);
                    }
                    Ok(message) => {
                        second_best.get_or_insert(message);
                        next_turn = Instant::now();
                    }
                    Err(error) => {
                        self.set_aside(upstream, &error);
                        next_turn = Instant::now();
                    }
                },
                () = sleep_until(next_turn), if more => {
                    next_turn = Instant::now() + self.limits.patience;
                    match turns.next() {
                        Some(&upstream) => {
                            asked.push((upstream, Instant::now()));
                            under_way.push(self.exchange(upstream, question));
                        }
                        None => more = false,
                    }
                }
                else => return second_best,
            }
        }
    }

    async fn exchange<'u>(
        &self,
        upstream: &'u Upstream,
        question: &Question,
    ) -> (&'u Upstream, Result<Message, ExchangeError>) {
        (
            upstream,
            exchange(upstream.address, question, self.limits.in_full).await,
        )
    }

    /// The servers in the order of asking: as configured, but those set aside come last.
    fn order(&self) -> Vec<&Upstream> {
        let now = Instant::now();
        let mut order: Vec<&Upstream> = self.upstreams.iter().collect();
        order.sort_by_key(|upstream| upstream.is_aside(now));
        order
    }

    /// Sets aside servers that did not answer in time while another one did.
    fn judge(&self, answered: &Upstream, asked: &[(&Upstream, Instant)]) {
        let now = Instant::now();
        for (upstream, began) in asked {
            let silent = now.duration_since(*began) >= self.limits.patience;
            if silent && upstream.address != answered.address {
                self.set_aside(upstream, &ExchangeError::Silent);
            }
        }
    }

    fn set_aside(&self, upstream: &Upstream, error: &ExchangeError) {
        let now = Instant::now();
        if !upstream.is_aside(now) {
            let error: &dyn std::error::Error = error;
            tracing::info!(server = %upstream.address, error, "DNS server is asked last for a while");
        }
        *lock(&upstream.aside_until) = Some(now + self.limits.aside);
    }
}

/// One server to ask, and until when it is asked last.
#[derive(Debug)]
struct Upstream {
    address: SocketAddr,
    aside_until: Mutex<Option<Instant>>,
}

impl Upstream {
    fn new(address: SocketAddr) -> Self {
        Self {
            address,
            aside_until: Mutex::new(None),
        }
    }

    fn is_aside(&self, now: Instant) -> bool {
        lock(&self.aside_until).is_some_and(|until| now < until)
    }
}

/// Tells an answer, a denial included, from a server's word that it cannot or will not tell:
/// another may.
fn is_answer(message: &Message) -> bool {
    let code = message.metadata.response_code;
    !matches!(
        code,
        ResponseCode::NotImp | ResponseCode::Refused | ResponseCode::ServFail
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use hickory_server::proto::rr::{Name, RecordType};

    use super::super::tests::peer::{self, Peer};
    use super::*;

    fn impatient() -> Limits {
        Limits {
            patience: Duration::from_millis(1),
            ..Limits::default()
        }
    }

    #[tokio::test]
    async fn unanswering_server_is_asked_last_for_a_while() {
        let silent = Peer::silent().addr;
        for (first, limits) in [(peer::unused(), Limits::default()), (silent, impatient())] {
            let alive = Peer::answering("192.0.2.1").addr;
            let forwarder = Forwarder::new(&[first, alive], &limits).unwrap();

            forwarder.ask(&question()).await.expect("an answer");

            assert_eq!(order(&forwarder), [alive, first]);
            let later = Instant::now() + limits.aside;
            let mut upstreams = forwarder.upstreams.iter();
            assert!(upstreams.all(|upstream| !upstream.is_aside(later)));
        }
    }

    #[tokio::test]
    async fn silence_of_all_servers_changes_nothing() {
        let (first, second) = (Peer::silent(), Peer::silent());
        let limits = Limits {
            question: Duration::from_millis(20),
            ..impatient()
        };
        let forwarder = Forwarder::new(&[first.addr, second.addr], &limits).unwrap();

        assert!(forwarder.ask(&question()).await.is_none());

        assert_eq!(order(&forwarder), [first.addr, second.addr]);
        let left = forwarder.permits.left();
        assert_eq!(left, limits.questions, "a permit ends with its question");
    }

    #[tokio::test]
    async fn lost_question_is_asked_again() {
        let lost = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let other = Peer::start(move |_, question| {
            let seen = lost.swap(true, std::sync::atomic::Ordering::Relaxed);
            seen.then(|| peer::records(question, &["192.0.2.1"]))
        });
        let forwarder = Forwarder::new(&[other.addr], &impatient()).unwrap();

        let answer = forwarder.ask(&question()).await.expect("an answer");

        assert_eq!(answer.answers.len(), 1);
        assert_eq!(order(&forwarder), [other.addr]);
    }

    fn order(forwarder: &Forwarder) -> Vec<SocketAddr> {
        let order = forwarder.order();
        order.iter().map(|upstream| upstream.address).collect()
    }

    fn question() -> Question {
        Question {
            asker: IpAddr::from([127, 0, 0, 1]),
            over_tcp: false,
            query: Query::query(Name::from_ascii("example.com.").unwrap(), RecordType::A),
            recursion_desired: true,
            authentic_data: false,
            checking_disabled: false,
            dnssec_ok: None,
        }
    }
}

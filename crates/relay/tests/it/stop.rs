//! A relay that is stopped at any moment and resumed elsewhere passes on the same bytes and ends.
//!
//! ```text
//!     client ◀─▶ relay ─stop─▶ dup(2) of both sockets, another pool ─resume─▶ relay ◀─▶ server
//! ```
//!
//! What a connection does depends on its seed alone; when the kernel reports it does not.

use std::cell::Cell;
use std::future::poll_fn;
use std::io::ErrorKind;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use relay::{Outcome, Pool, PoolParams, Relay, Side, Socket, Stopped, StoppedHalf, Timers};
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::{JoinSet, LocalSet, spawn_local};
use tokio::time::{Instant, sleep, timeout};

use crate::support::{Counts, pair, pattern};
use crate::traffic::{End, Flow, Plan, Player, Random, SMALL_BYTES, When};

/// A hang is a failure.
const LIMIT: Duration = Duration::from_secs(20);

const CONNECTIONS: u64 = 160;

const AT_ONCE: usize = 16;

#[tokio::test]
async fn stopped_relay_loses_nothing_from_pipes() {
    let seen = stop_often(PoolParams::for_workers(1)).await;
    assert!(seen.held.get() > 8 * SMALL_BYTES, "{seen:?}");
}

#[tokio::test]
async fn stopped_relay_loses_nothing_it_copied() {
    let seen = stop_often(PoolParams::COPYING).await;
    assert!(seen.held.get() <= SMALL_BYTES, "{seen:?}");
}

/// In which states relays were stopped: without these the test would find nothing.
#[derive(Debug, Default)]
struct Seen {
    /// Most bytes held by one direction.
    held: Cell<usize>,
    /// Directions that held bytes, that were over.
    holding: Cell<usize>,
    passed: Cell<usize>,
}

impl Seen {
    fn add(&self, stopped: &Stopped) {
        for half in [&stopped.rx, &stopped.tx] {
            self.held.set(self.held.get().max(half.held.len()));
            let count = |cell: &Cell<usize>, counts| cell.set(cell.get() + usize::from(counts));
            count(&self.holding, !half.held.is_empty());
            count(&self.passed, half.end_passed);
        }
    }
}

async fn stop_often(params: PoolParams) -> Rc<Seen> {
    let seen = LocalSet::new().run_until(play_all(params)).await;
    assert!(seen.holding.get() > 0 && seen.passed.get() > 0, "{seen:?}");
    seen
}

async fn play_all(params: PoolParams) -> Rc<Seen> {
    let pools = Rc::new([(); 2].map(|()| Rc::new(Pool::new(params))));
    let seen = Rc::new(Seen::default());
    let (mut running, mut seeds) = (JoinSet::new(), 0..CONNECTIONS);
    loop {
        while running.len() < AT_ONCE
            && let Some(seed) = seeds.next()
        {
            let connection = connection(seed, Rc::clone(&pools), Rc::clone(&seen));
            running.spawn_local(async move {
                let played = timeout(LIMIT, spawn_local(connection)).await;
                let played = played.unwrap_or_else(|_| panic!("seed {seed} hangs"));
                played.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            });
        }
        let Some(played) = running.join_next().await else {
            break;
        };
        played.unwrap();
    }
    for pool in &*pools {
        (0..2).for_each(|_| pool.trim());
        assert_eq!(pool.pipes(), 0, "pipes that were not given back");
    }
    seen
}

/// Plays both peers of one relay, which is stopped now and then, and compares.
async fn connection(seed: u64, pools: Rc<[Rc<Pool>; 2]>, seen: Rc<Seen>) {
    let mut random = Random(seed);
    let (client, downstream) = pair().await;
    let (server, upstream) = pair().await;
    // What a sink does not take waits in the relay, not in its socket.
    if random.one_in(2) {
        for socket in [&downstream, &upstream] {
            SockRef::from(socket)
                .set_send_buffer_size(32 * 1024)
                .unwrap();
        }
    }
    let unread = if random.one_in(4) { 128 * 1024 } else { 0 };
    if unread > 0 {
        let (source, sink) = (SockRef::from(&upstream), SockRef::from(&downstream));
        source.set_recv_buffer_size(unread as usize).unwrap();
        sink.set_tcp_notsent_lowat(unread / 2).unwrap();
    }

    let (up, down) = (Flow::new(&mut random), Flow::new(&mut random));
    let [client_plan, server_plan] = Plan::both(&mut random);
    let reset_by = match (client_plan.end, server_plan.end) {
        (End::Reset(when), _) => Some((Side::Downstream, when)),
        (_, End::Reset(when)) => Some((Side::Upstream, when)),
        _ => None,
    };
    let counts = Counts::default();
    let client = Player::new(client, client_plan, &up, &down, &mut random);
    let server = Player::new(server, server_plan, &down, &up, &mut random);
    let carrier = Carrier {
        pools: &pools,
        seen: &seen,
        counts: &counts,
        unread,
        random: random.fork(),
    };
    let relayed = carrier.relay((downstream, upstream));
    let (client_end, server_end, outcome) = tokio::join!(client.play(), server.play(), relayed);

    let Some((by, when)) = reset_by else {
        assert!(matches!(outcome, Outcome::Closed), "{outcome:?}");
        assert_eq!([client_end, server_end], [Some((Ok(()), Ok(()))); 2]);
        up.assert_whole(counts.rx.get());
        down.assert_whole(counts.tx.get());
        return;
    };
    let (flow, counted, end) = match by {
        Side::Downstream => (&up, counts.rx.get(), server_end),
        Side::Upstream => (&down, counts.tx.get(), client_end),
    };
    let (sent, received) = end.unwrap();
    // The kernel reports a reset once, to whichever call comes first.
    let reset = [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe].map(Err);
    let is_reset = matches!(&outcome, Outcome::Reset { side, .. } if *side == by);
    match when {
        When::AtOnce => assert_eq!(counted, flow.arrived.get(), "what was sent before"),
        When::Delivered | When::Ended => flow.assert_whole(counted),
    }
    match when {
        When::AtOnce | When::Delivered => {
            assert!(is_reset, "{outcome:?}");
            assert!(
                received == reset[0] || reset.contains(&sent),
                "{sent:?} {received:?}"
            );
        }
        When::Ended => {
            assert!(
                is_reset || matches!(outcome, Outcome::Closed),
                "{outcome:?}"
            );
            assert_eq!(received, Ok(()), "its end came before");
            assert!(sent == Ok(()) || reset.contains(&sent), "{sent:?}");
        }
    }
}

/// Relays one connection and, now and then, moves it to the other pool.
struct Carrier<'a> {
    pools: &'a [Rc<Pool>; 2],
    seen: &'a Seen,
    counts: &'a Counts,
    unread: u32,
    random: Random,
}

impl Carrier<'_> {
    /// Closes the sockets at the end, as a proxy does.
    async fn relay(mut self, mut sockets: (Socket, Socket)) -> Outcome {
        let (mut stopped, mut stops) = (None, self.random.below(40));
        loop {
            let (downstream, upstream) = &sockets;
            let pool = Rc::clone(&self.pools[stops % 2]);
            let (counts, timers) = (self.counts, Timers::default());
            let relay = match stopped.take() {
                None => Relay::new(downstream, upstream, pool, counts, timers),
                Some(from) => Relay::resume(downstream, upstream, pool, counts, timers, from),
            };
            let mut relay = relay.paced(self.unread);
            if stops == 0 {
                // No stop wakes it any more: it must end by itself.
                return relay.await;
            }
            stops -= 1;
            match self.run(&mut relay).await {
                Err(outcome) => return outcome,
                Ok(state) => stopped = Some(state),
            }
            drop(relay);
            sockets = (duplicate(sockets.0), duplicate(sockets.1));
            if self.random.one_in(3) {
                sleep(self.random.millis(3)).await;
            }
        }
    }

    /// Relays until some poll or some time, both of which leave states that the other does not.
    async fn run(&mut self, relay: &mut Relay<'_, Counts>) -> Result<Stopped, Outcome> {
        let by_time = self.random.one_in(2);
        let (mut polls, after) = (self.random.below(12), self.random.millis(12));
        let mut due = pin!(sleep(after));
        poll_fn(|cx| {
            for polled in [false, true] {
                let is_due = if by_time {
                    due.as_mut().poll(cx).is_ready()
                } else {
                    polls == 0
                };
                // Refused where it is about to reset a peer.
                if is_due && let Some(stopped) = relay.stop() {
                    self.seen.add(&stopped);
                    return Poll::Ready(Ok(stopped));
                }
                if !polled && let Poll::Ready(outcome) = Pin::new(&mut *relay).poll(cx) {
                    return Poll::Ready(Err(outcome));
                }
                polls = polls.saturating_sub(usize::from(!polled));
            }
            Poll::Pending
        })
        .await
    }
}

/// As SCM_RIGHTS would: another descriptor of the same socket; the first one is closed.
fn duplicate(socket: Socket) -> Socket {
    let own = socket.into_std();
    let other = own.try_clone().unwrap();
    drop(own);
    other.try_into().unwrap()
}

#[tokio::test(start_paused = true)]
async fn idle_limit_counts_time_before_stop() {
    let (_client, downstream) = pair().await;
    let (_server, upstream) = pair().await;
    let (down, up) = (&downstream, &upstream);
    let pool = Rc::new(Pool::new(PoolParams::COPYING));
    let counts = Counts::default();
    let (limit, before) = (Duration::from_secs(60), Duration::from_secs(40));
    let timers = Timers {
        idle: Some(limit),
        deadline: None,
    };
    let mut relay = Relay::new(down, up, Rc::clone(&pool), &counts, timers);
    assert!(timeout(before, &mut relay).await.is_err());
    let stopped = relay.stop().unwrap();
    assert!(
        (before..before + SLACK).contains(&stopped.idle),
        "{stopped:?}"
    );
    assert_eq!(relay.stop(), None, "a second time");
    // Nothing of it belongs to its thread.
    let stopped = std::thread::spawn(move || stopped).join().unwrap();
    sleep(limit).await;
    for (idle, left) in [
        (stopped.idle, limit - before),
        (Duration::MAX, Duration::ZERO),
    ] {
        let start = Instant::now();
        let stopped = Stopped {
            idle,
            ..stopped.clone()
        };
        let outcome = Relay::resume(down, up, Rc::clone(&pool), &counts, timers, stopped).await;
        assert!(matches!(outcome, Outcome::IdleTimeout), "{outcome:?}");
        let took = start.elapsed();
        assert!(took + SLACK > left && took < left + SLACK, "{took:?}");
    }
}

/// The runtime's timers round up to milliseconds.
const SLACK: Duration = Duration::from_millis(10);

#[tokio::test]
async fn passed_end_outweighs_held_bytes() {
    let (mut client, downstream) = pair().await;
    let (mut server, upstream) = pair().await;
    let stopped = Stopped {
        rx: StoppedHalf {
            held: b"behind the end".to_vec(),
            end_passed: true,
        },
        tx: StoppedHalf {
            held: b"tail".to_vec(),
            end_passed: false,
        },
        idle: Duration::MAX,
    };
    let (pool, counts) = (Rc::new(Pool::new(PoolParams::COPYING)), Counts::default());
    let timers = Timers::default();
    let relay = Relay::resume(&downstream, &upstream, pool, &counts, timers, stopped);
    server.shutdown().await.unwrap();
    assert!(matches!(relay.await, Outcome::Closed));
    drop((downstream, upstream));
    let (mut received, mut tail) = (Vec::new(), Vec::new());
    server.read_to_end(&mut received).await.unwrap();
    client.read_to_end(&mut tail).await.unwrap();
    assert_eq!((&*received, &*tail), (&b""[..], &b"tail"[..]));
    assert_eq!((counts.rx.get(), counts.tx.get()), (0, 4));
}

#[tokio::test]
async fn relay_refuses_stop_while_it_passes_reset_on() {
    let (mut client, downstream) = pair().await;
    let (mut server, upstream) = pair().await;
    let (pool, counts) = (Rc::new(Pool::new(PoolParams::COPYING)), Counts::default());
    let mut relay = Relay::new(&downstream, &upstream, pool, &counts, Timers::default());
    let data = pattern(1024 * 1024);
    // More than the server's socket takes unread, less than that and the relay's socket do.
    let all_relayed = async {
        client.write_all(&data).await.unwrap();
        while counts.rx.get() < data.len() as u64 {
            sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        outcome = &mut relay => panic!("{outcome:?}"),
        () = all_relayed => {}
    }
    SockRef::from(&client)
        .set_linger(Some(Duration::ZERO))
        .unwrap();
    drop(client);
    // It may still be stopped until it has seen the reset.
    poll_fn(|cx| {
        assert!(Pin::new(&mut relay).poll(cx).is_pending());
        let refused = SockRef::from(&upstream).linger().unwrap().is_some();
        if refused {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
    assert_eq!(relay.stop(), None);
    let mut received = vec![0; data.len()];
    let (outcome, read) = tokio::join!(relay, server.read_exact(&mut received));
    read.unwrap();
    let by_client = matches!(&outcome, Outcome::Reset { side, .. } if *side == Side::Downstream);
    assert!(by_client && received == data, "{outcome:?}");
    drop((downstream, upstream));
    let end = server.read(&mut received).await;
    assert_eq!(end.unwrap_err().kind(), ErrorKind::ConnectionReset);
}

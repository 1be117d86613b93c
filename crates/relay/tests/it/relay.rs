//! Both directions of a relay: half-close, bulk, stalls, limits in time.

use std::rc::Rc;
use std::time::Duration;

use relay::{Outcome, PoolParams, Relay, Side, Timers};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::support::{Case, Counts, ENGINES, Engine, pair, pattern, play, relay};

const BULK: usize = 24 * 1024 * 1024;

#[tokio::test]
async fn half_close_keeps_other_direction_open() {
    for engine in ENGINES {
        let case = Case::new(engine).await;
        let (outcome, case) = play(case, async |mut client, mut server| {
            client.write_all(b"question").await.unwrap();
            client.shutdown().await.unwrap();
            let mut question = Vec::new();
            server.read_to_end(&mut question).await.unwrap();
            assert_eq!(question, b"question");
            // Only now, after the end of the request, does the answer start.
            server.write_all(b"a longer answer").await.unwrap();
            let mut answer = [0; 15];
            client.read_exact(&mut answer).await.unwrap();
            server.shutdown().await.unwrap();
            assert_eq!(client.read(&mut [0; 1]).await.unwrap(), 0);
        })
        .await;
        assert!(matches!(outcome, Outcome::Closed), "{outcome:?}");
        assert_eq!((case.counts.rx.get(), case.counts.tx.get()), (8, 15));
    }
}

#[tokio::test]
async fn server_may_end_first_and_still_receive() {
    for engine in ENGINES {
        let case = Case::new(engine).await;
        let (outcome, case) = play(case, async |mut client, mut server| {
            server.shutdown().await.unwrap();
            assert_eq!(client.read(&mut [0; 1]).await.unwrap(), 0);
            client.write_all(&pattern(300_000)).await.unwrap();
            client.shutdown().await.unwrap();
            let mut all = Vec::new();
            server.read_to_end(&mut all).await.unwrap();
            assert_eq!(all, pattern(300_000));
        })
        .await;
        assert!(matches!(outcome, Outcome::Closed), "{outcome:?}");
        assert_eq!((case.counts.rx.get(), case.counts.tx.get()), (300_000, 0));
    }
}

async fn bulk_both_ways(case: Case) -> Case {
    let (outcome, case) = play(case, async |client, server| {
        let exchange = async |stream: TcpStream| {
            let (mut read, mut write) = stream.into_split();
            let send = async {
                write.write_all(&pattern(BULK)).await.unwrap();
                write.shutdown().await.unwrap();
            };
            let mut all = Vec::with_capacity(BULK);
            let receive = read.read_to_end(&mut all);
            let ((), received) = tokio::join!(send, receive);
            received.unwrap();
            assert!(
                all == pattern(BULK),
                "received {} bytes that differ",
                all.len()
            );
        };
        tokio::join!(exchange(client), exchange(server));
    })
    .await;
    assert!(matches!(outcome, Outcome::Closed), "{outcome:?}");
    assert_eq!(
        (case.counts.rx.get(), case.counts.tx.get()),
        (BULK as u64, BULK as u64)
    );
    case
}

#[tokio::test]
async fn bulk_is_spliced_and_arrives_whole() {
    let case = bulk_both_ways(Case::new(Engine::Splice).await).await;
    let copied = case.counts.copied.get();
    assert!(
        copied < BULK as u64 / 4,
        "{copied} of {} bytes were copied",
        2 * BULK
    );
    assert!(case.pool.pipes() > 0);
}

#[tokio::test]
async fn bulk_is_copied_and_counted_without_pipes() {
    for engine in [Engine::Copy, Engine::Streams] {
        let case = bulk_both_ways(Case::new(engine).await).await;
        assert_eq!(case.counts.copied.get(), 2 * BULK as u64);
    }
}

#[tokio::test]
async fn second_direction_copies_without_pipes() {
    let params = PoolParams {
        pipes: 1,
        ..PoolParams::for_workers(1)
    };
    let case = bulk_both_ways(Case::with_pool(Engine::Splice, params).await).await;
    let copied = case.counts.copied.get();
    assert!(copied > 0 && copied < 2 * BULK as u64, "{copied}");
    assert_eq!(case.pool.pipes(), 1);
}

#[tokio::test]
async fn idle_relay_holds_no_pipe() {
    let case = Case::new(Engine::Splice).await;
    let pool = Rc::clone(&case.pool);
    let (_, case) = play(case, async |mut client, mut server| {
        let data = pattern(4 * 1024 * 1024);
        let send = client.write_all(&data);
        let mut all = vec![0; data.len()];
        let (sent, received) = tokio::join!(send, server.read_exact(&mut all));
        sent.unwrap();
        received.unwrap();
        // One exchange in each direction more, so that the relay has run after the last byte.
        for (from, to) in [(&mut client, &mut server)] {
            from.write_all(b"x").await.unwrap();
            to.read_exact(&mut [0; 1]).await.unwrap();
        }
        pool.trim();
        pool.trim();
        assert_eq!(pool.pipes(), 0);
    })
    .await;
    assert_eq!(case.counts.rx.get(), 4 * 1024 * 1024 + 1);
}

#[tokio::test]
async fn stalled_reader_is_bounded_and_lossless() {
    for engine in ENGINES {
        let case = Case::new(engine).await;
        let (outcome, case) = play(case, async |client, mut server| {
            let (mut read, mut write) = client.into_split();
            // Fill every buffer on the way: try_write refuses once nothing moves any more.
            let data = pattern(64 * 1024 * 1024);
            let mut sent = 0;
            loop {
                let stalled =
                    tokio::time::timeout(Duration::from_millis(300), write.writable()).await;
                if stalled.is_err() {
                    break;
                }
                match write.try_write(&data[sent..]) {
                    Ok(n) => sent += n,
                    Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
                }
                assert!(
                    sent < data.len(),
                    "a peer that does not read was sent {sent} bytes"
                );
            }
            // The other direction is not hurt by it.
            server.write_all(b"still here").await.unwrap();
            read.read_exact(&mut [0; 10]).await.unwrap();
            write.shutdown().await.unwrap();
            let mut all = Vec::new();
            let mut reading = server;
            reading.read_to_end(&mut all).await.unwrap();
            assert!(all == data[..sent], "{} of {sent} bytes arrived", all.len());
        })
        .await;
        assert!(matches!(outcome, Outcome::Closed), "{outcome:?}");
        assert_eq!(case.pool.pipes().min(2), case.pool.pipes());
    }
}

#[tokio::test(start_paused = true)]
async fn pipe_of_stalled_reader_is_lent_again() {
    let one = PoolParams {
        pipes: 1,
        pipe_bytes: 1024 * 1024,
    };
    let stalled = Case::with_pool(Engine::Splice, one).await;
    let pool = Rc::clone(&stalled.pool);
    let (client, downstream) = pair().await;
    let (mut server, upstream) = pair().await;
    let data = pattern(64 * 1024 * 1024);
    let (counts, timers) = (&stalled.counts, Timers::default());
    let relay = Relay::new(&downstream, &upstream, Rc::clone(&pool), counts, timers);
    let script = async {
        let (mut sent, mut refused) = (0, 0);
        // The clock is paused: a sleep only lets the relay run until nothing moves any more.
        while refused < 200 {
            tokio::time::sleep(Duration::from_millis(10)).await;
            match client.try_write(&data[sent..]) {
                Ok(n) => (sent, refused) = (sent + n, 0),
                Err(_) => refused += 1,
            }
        }
        // The reader has taken nothing, and another relay has the pipe.
        let mut other = Case::new(Engine::Splice).await;
        other.pool = pool;
        let other = bulk_one_way(other).await;
        assert!(
            other.counts.copied.get() < 1024 * 1024,
            "{:?}",
            other.counts
        );
        drop(client);
        let mut all = Vec::new();
        server.read_to_end(&mut all).await.unwrap();
        assert!(all == data[..sent], "{} of {sent} bytes", all.len());
        server.shutdown().await.unwrap();
    };
    let ((), outcome) = tokio::join!(script, relay);
    assert!(matches!(outcome, Outcome::Closed), "{outcome:?}");
}

async fn bulk_one_way(case: Case) -> Case {
    let (outcome, case) = play(case, async |mut client, mut server| {
        let send = async {
            client.write_all(&pattern(BULK)).await.unwrap();
            client.shutdown().await.unwrap();
        };
        let mut all = Vec::with_capacity(BULK);
        let ((), received) = tokio::join!(send, server.read_to_end(&mut all));
        received.unwrap();
        assert!(all == pattern(BULK), "{} bytes", all.len());
        server.shutdown().await.unwrap();
    })
    .await;
    assert!(matches!(outcome, Outcome::Closed), "{outcome:?}");
    case
}

#[tokio::test(start_paused = true)]
async fn stalled_copy_leaves_bulk_with_its_source() {
    let case = Case::new(Engine::Copy).await;
    let (client, downstream) = pair().await;
    let (_silent, upstream) = pair().await;
    let data = pattern(64 * 1024 * 1024);
    let mut sent = 0;
    let fill = async {
        let mut refused = 0;
        // The clock is paused: a sleep only lets the relay run until nothing moves any more.
        while refused < 20 {
            tokio::time::sleep(Duration::from_millis(10)).await;
            match client.try_write(&data[sent..]) {
                Ok(n) => (sent, refused) = (sent + n, 0),
                Err(_) => refused += 1,
            }
        }
    };
    let timers = Timers::default();
    let pool = Rc::clone(&case.pool);
    tokio::select! {
        outcome = Relay::new(&downstream, &upstream, pool, &case.counts, timers) => {
            panic!("{outcome:?}")
        }
        () = fill => {}
    }
    // The relay is gone, and with it what it held: at most what a small read brought.
    let passed = usize::try_from(case.counts.rx.get()).unwrap();
    let (mut left, mut buf, mut empty) = (0, Vec::with_capacity(1024 * 1024), 0);
    while empty < 20 && passed + left < sent {
        // The client's kernel sends on what it has while we read.
        tokio::time::sleep(Duration::from_millis(10)).await;
        buf.clear();
        match downstream.try_read(&mut buf) {
            Ok(n) => (left, empty) = (left + n, 0),
            Err(_) => empty += 1,
        }
    }
    let lost = sent - passed - left;
    assert!(lost <= 16 * 1024, "{lost} of {sent} bytes were held");
    assert!(passed < sent, "it did not stall");
}

#[tokio::test]
async fn outcome_names_side_that_reset() {
    for engine in ENGINES {
        for (reset_client, expected) in [(true, Side::Downstream), (false, Side::Upstream)] {
            let case = Case::new(engine).await;
            let (outcome, _) = play(case, async |mut client, mut server| {
                client.write_all(b"hello").await.unwrap();
                server.read_exact(&mut [0; 5]).await.unwrap();
                let (dying, mut other) = if reset_client {
                    (client, server)
                } else {
                    (server, client)
                };
                socket2::SockRef::from(&dying)
                    .set_linger(Some(Duration::ZERO))
                    .unwrap();
                drop(dying);
                // The survivor is still open when the relay notices; closing sockets is the caller's.
                let _ = other.write_all(b"late").await;
            })
            .await;
            match outcome {
                Outcome::Reset { side, .. } => assert_eq!(side, expected),
                other => panic!("{other:?}"),
            }
        }
    }
}

#[tokio::test]
async fn bytes_before_server_reset_are_delivered() {
    for engine in ENGINES {
        let case = Case::new(engine).await;
        let (outcome, _) = play(case, async |mut client, mut server| {
            server.write_all(b"refused, and why").await.unwrap();
            let mut answer = [0; 16];
            client.read_exact(&mut answer).await.unwrap();
            assert_eq!(&answer, b"refused, and why");
            socket2::SockRef::from(&server)
                .set_linger(Some(Duration::ZERO))
                .unwrap();
            drop(server);
            // Writing into the dead connection must not lose the other half's end.
            let _ = client.write_all(&pattern(100_000)).await;
            let _ = client.shutdown().await;
        })
        .await;
        assert!(
            matches!(
                outcome,
                Outcome::Reset {
                    side: Side::Upstream,
                    ..
                }
            ),
            "{outcome:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn idle_and_age_limits_end_quiet_relay() {
    let minute = Duration::from_secs(60);
    for engine in ENGINES {
        let case = Case::new(engine).await;
        let start = Instant::now();
        let timers = Timers {
            idle: Some(minute),
            deadline: None,
        };
        let outcome = relay(&case, timers).await;
        assert!(matches!(outcome, Outcome::IdleTimeout), "{outcome:?}");
        assert!(start.elapsed() >= minute);

        let case = Case::new(engine).await;
        let timers = Timers {
            idle: Some(minute),
            deadline: Some(Instant::now() + minute / 2),
        };
        let outcome = relay(&case, timers).await;
        assert!(matches!(outcome, Outcome::MaxAge), "{outcome:?}");
    }
}

#[tokio::test]
async fn activity_postpones_idle_limit() {
    // Real time: a paused clock would jump ahead whenever the sockets have nothing to do.
    for engine in [Engine::Splice, Engine::Streams] {
        let case = Case::new(engine).await;
        let start = Instant::now();
        let idle = Duration::from_secs(1);
        let (client, server) = (&case.client, &case.server);
        let timers = Timers {
            idle: Some(idle),
            deadline: None,
        };
        let mut outcome = relay(&case, timers);
        for _ in 0..6 {
            let exchange = async {
                tokio::time::sleep(idle / 4).await;
                client.try_write(b"x").unwrap();
                let mut byte = [0; 1];
                while server.try_read(&mut byte).is_err() {
                    server.readable().await.unwrap();
                }
            };
            tokio::select! {
                biased;
                outcome = &mut outcome => panic!("{outcome:?} after {:?}", start.elapsed()),
                () = exchange => {}
            }
        }
        assert!(matches!(outcome.await, Outcome::IdleTimeout));
        assert!(start.elapsed() >= 2 * idle, "{:?}", start.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn lost_source_is_noticed_while_sink_stalls() {
    for engine in ENGINES {
        let case = Case::new(engine).await;
        let (outcome, _) = play(case, async |client, server| {
            let data = pattern(1024 * 1024);
            let mut refused = 0;
            // The clock is paused: a sleep only lets the relay run until nothing moves any more.
            while refused < 20 {
                tokio::time::sleep(Duration::from_millis(10)).await;
                match client.try_write(&data) {
                    Ok(_) => refused = 0,
                    Err(_) => refused += 1,
                }
            }
            socket2::SockRef::from(&client)
                .set_linger(Some(Duration::ZERO))
                .unwrap();
            drop(client);
            tokio::time::sleep(Duration::from_secs(3600)).await;
            drop(server); // it never read anything
        })
        .await;
        assert!(
            matches!(
                outcome,
                Outcome::Reset {
                    side: Side::Downstream,
                    ..
                }
            ),
            "{outcome:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn sink_may_read_bytes_of_lost_source() {
    for engine in ENGINES {
        let case = Case::new(engine).await;
        let (_, case) = play(case, async |client, mut server| {
            let data = pattern(1024 * 1024);
            let mut refused = 0;
            while refused < 20 {
                tokio::time::sleep(Duration::from_millis(10)).await;
                match client.try_write(&data) {
                    Ok(_) => refused = 0,
                    Err(_) => refused += 1,
                }
            }
            socket2::SockRef::from(&client)
                .set_linger(Some(Duration::ZERO))
                .unwrap();
            drop(client);
            tokio::time::sleep(Duration::from_secs(10)).await;
            server.read_exact(&mut vec![0; 256 * 1024]).await.unwrap();
        })
        .await;
        assert!(case.counts.rx.get() >= 256 * 1024);
    }
}

#[test]
fn relay_state_is_small() {
    // It lives as long as the connection: memory per idle connection is a product number.
    let size = size_of::<Relay<'_, Counts>>();
    assert!(size <= 208, "{size} bytes");
}

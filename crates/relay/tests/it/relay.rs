//! Both directions of a relay: half-close, bulk, stalls, limits in time.

use std::rc::Rc;
use std::time::Duration;

use relay::{Outcome, PoolParams, Relay, Side, Timers};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::support::{Case, Counts, both, pattern, play, relay};

const BULK: usize = 24 * 1024 * 1024;

#[tokio::test]
async fn half_close_keeps_the_other_direction_open() {
    for params in both() {
        let case = Case::new(params).await;
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
async fn the_server_may_end_first_and_still_receive() {
    for params in both() {
        let case = Case::new(params).await;
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

async fn bulk_both_ways(params: PoolParams) -> Case {
    let case = Case::new(params).await;
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
                "received {} octets that differ",
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
    let case = bulk_both_ways(PoolParams::for_workers(1)).await;
    let copied = case.counts.copied.get();
    assert!(
        copied < BULK as u64 / 4,
        "{copied} of {} octets were copied",
        2 * BULK
    );
    assert!(case.pool.pipes() > 0);
}

#[tokio::test]
async fn bulk_is_copied_and_counted_where_no_pipe_is_to_be_had() {
    let case = bulk_both_ways(PoolParams::COPYING).await;
    assert_eq!(case.counts.copied.get(), 2 * BULK as u64);
}

#[tokio::test]
async fn one_pipe_serves_one_direction_and_the_other_copies() {
    let case = bulk_both_ways(PoolParams {
        pipes: 1,
        ..PoolParams::for_workers(1)
    })
    .await;
    let copied = case.counts.copied.get();
    assert!(copied > 0 && copied < 2 * BULK as u64, "{copied}");
    assert_eq!(case.pool.pipes(), 1);
}

#[tokio::test]
async fn an_idle_relay_holds_no_pipe() {
    let case = Case::new(PoolParams::for_workers(1)).await;
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
async fn a_stalled_reader_bounds_what_is_held_and_loses_nothing() {
    for params in both() {
        let case = Case::new(params).await;
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
                    "a peer that does not read was sent {sent} octets"
                );
            }
            // The other direction is not hurt by it.
            server.write_all(b"still here").await.unwrap();
            read.read_exact(&mut [0; 10]).await.unwrap();
            write.shutdown().await.unwrap();
            let mut all = Vec::new();
            let mut reading = server;
            reading.read_to_end(&mut all).await.unwrap();
            assert!(
                all == data[..sent],
                "{} of {sent} octets arrived",
                all.len()
            );
        })
        .await;
        assert!(matches!(outcome, Outcome::Closed), "{outcome:?}");
        assert_eq!(case.pool.pipes().min(2), case.pool.pipes());
    }
}

#[tokio::test(start_paused = true)]
async fn a_stalled_copy_leaves_with_the_source_what_its_sink_does_not_take() {
    let case = Case::new(PoolParams::COPYING).await;
    let data = pattern(64 * 1024 * 1024);
    let mut sent = 0;
    let fill = async {
        let mut refused = 0;
        // The clock is paused: a sleep only lets the relay run until nothing moves any more.
        while refused < 20 {
            tokio::time::sleep(Duration::from_millis(10)).await;
            match case.client.try_write(&data[sent..]) {
                Ok(n) => (sent, refused) = (sent + n, 0),
                Err(_) => refused += 1,
            }
        }
    };
    tokio::select! {
        outcome = relay(&case, Timers::default()) => panic!("{outcome:?}"),
        () = fill => {}
    }
    // The relay is gone, and with it what it held: at most what a small read brought.
    let passed = usize::try_from(case.counts.rx.get()).unwrap();
    let (mut left, mut buf, mut empty) = (0, vec![0; 1024 * 1024], 0);
    while empty < 20 && passed + left < sent {
        // The client's kernel sends on what it has while we read.
        tokio::time::sleep(Duration::from_millis(10)).await;
        match case.downstream.try_read(&mut buf) {
            Ok(n) => (left, empty) = (left + n, 0),
            Err(_) => empty += 1,
        }
    }
    let lost = sent - passed - left;
    assert!(lost <= 16 * 1024, "{lost} of {sent} octets were held");
    assert!(passed < sent, "it did not stall");
}

#[tokio::test]
async fn a_reset_is_told_by_its_side() {
    for (reset_client, expected) in [(true, Side::Downstream), (false, Side::Upstream)] {
        let case = Case::new(PoolParams::for_workers(1)).await;
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

#[tokio::test]
async fn what_the_server_sent_before_resetting_is_delivered() {
    let case = Case::new(PoolParams::for_workers(1)).await;
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

#[tokio::test(start_paused = true)]
async fn idle_and_age_limits_end_a_quiet_relay() {
    let minute = Duration::from_secs(60);
    let case = Case::new(PoolParams::for_workers(1)).await;
    let start = Instant::now();
    let outcome = relay(
        &case,
        Timers {
            idle: Some(minute),
            deadline: None,
        },
    )
    .await;
    assert!(matches!(outcome, Outcome::IdleTimeout), "{outcome:?}");
    assert!(start.elapsed() >= minute);

    let deadline = Some(Instant::now() + minute / 2);
    let outcome = relay(
        &case,
        Timers {
            idle: Some(minute),
            deadline,
        },
    )
    .await;
    assert!(matches!(outcome, Outcome::MaxAge), "{outcome:?}");
}

#[tokio::test]
async fn activity_puts_the_idle_limit_off() {
    // Real time: a paused clock would jump ahead whenever the sockets have nothing to do.
    let case = Case::new(PoolParams::for_workers(1)).await;
    let start = Instant::now();
    let idle = Duration::from_secs(1);
    let (client, server) = (&case.client, &case.server);
    let mut outcome = std::pin::pin!(relay(
        &case,
        Timers {
            idle: Some(idle),
            deadline: None
        }
    ));
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

#[tokio::test(start_paused = true)]
async fn a_source_that_is_gone_is_noticed_while_its_sink_stalls() {
    for params in both() {
        let case = Case::new(params).await;
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
async fn what_a_gone_source_had_sent_may_still_be_taken() {
    for params in both() {
        let case = Case::new(params).await;
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
fn the_state_of_a_relay_is_small() {
    // It lives as long as the connection: memory per idle connection is a product number.
    let size = size_of::<Relay<'_, Counts>>();
    assert!(size <= 256, "{size} octets");
}

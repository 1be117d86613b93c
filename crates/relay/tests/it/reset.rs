//! A reset of one peer becomes a reset of the other, behind what was sent before it.

use std::io::ErrorKind;
use std::time::Duration;

use relay::{Outcome, Side};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{Case, ENGINES, Engine, pattern, play, play_counted};

/// Which peer resets.
const SIDES: [Side; 2] = [Side::Downstream, Side::Upstream];

fn engines_and_sides() -> impl Iterator<Item = (Engine, Side)> {
    ENGINES
        .into_iter()
        .flat_map(|engine| SIDES.map(|side| (engine, side)))
}

/// Returns the peer that resets and the other one.
fn by_side(side: Side, client: TcpStream, server: TcpStream) -> (TcpStream, TcpStream) {
    match side {
        Side::Downstream => (client, server),
        Side::Upstream => (server, client),
    }
}

fn reset(stream: TcpStream) {
    let socket = socket2::SockRef::from(&stream);
    socket.set_linger(Some(Duration::ZERO)).unwrap();
}

/// Reads until there is an end, whichever.
async fn read_out(stream: &mut TcpStream) -> (Vec<u8>, Result<(), ErrorKind>) {
    let mut all = Vec::new();
    let end = stream.read_to_end(&mut all).await;
    (all, end.map(drop).map_err(|error| error.kind()))
}

/// Writes until that fails, as it must.
async fn write_out(stream: &mut TcpStream) -> ErrorKind {
    loop {
        if let Err(error) = stream.write_all(b"more").await {
            return error.kind();
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

async fn exchange_byte(client: &mut TcpStream, server: &mut TcpStream) {
    client.write_all(b"x").await.unwrap();
    server.read_exact(&mut [0; 1]).await.unwrap();
}

fn assert_reset_by(outcome: &Outcome, expected: Side) {
    match outcome {
        Outcome::Reset { side, .. } => assert_eq!(*side, expected),
        other => panic!("{other:?}"),
    }
}

const RESET: Result<(), ErrorKind> = Err(ErrorKind::ConnectionReset);

#[tokio::test]
async fn reset_is_passed_on_when_idle() {
    for (engine, side) in engines_and_sides() {
        let case = Case::new(engine).await;
        let (outcome, _) = play(case, async |mut client, mut server| {
            exchange_byte(&mut client, &mut server).await;
            let (dying, mut other) = by_side(side, client, server);
            reset(dying);
            assert_eq!(
                read_out(&mut other).await,
                (vec![], RESET),
                "{engine:?} {side:?}"
            );
        })
        .await;
        assert_reset_by(&outcome, side);
    }
}

#[tokio::test]
async fn unsent_bytes_are_delivered_before_reset() {
    // More than the receiver's socket takes unread, less than that and the relay's socket do.
    let data = pattern(1024 * 1024);
    for engine in ENGINES {
        for side in SIDES {
            let case = Case::new(engine).await;
            let (outcome, _) = play_counted(case, async |client, server, counts| {
                let (mut dying, mut other) = by_side(side, client, server);
                dying.write_all(&data).await.unwrap();
                while counts.rx.get() + counts.tx.get() < data.len() as u64 {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                reset(dying);
                let mut first = vec![0; 1000];
                other.read_exact(&mut first).await.unwrap();
                // The relay sees the reset long before it is rid of the bytes.
                tokio::time::sleep(Duration::from_millis(50)).await;
                let (rest, end) = read_out(&mut other).await;
                let read = first.len() + rest.len();
                assert!(
                    [first, rest].concat() == data,
                    "{engine:?} {side:?}: {read} bytes"
                );
                assert_eq!(end, RESET, "{engine:?} {side:?}");
            })
            .await;
            assert_reset_by(&outcome, side);
        }
    }
}

#[tokio::test]
async fn bulk_in_progress_ends_with_reset() {
    for engine in ENGINES {
        for side in SIDES {
            let case = Case::new(engine).await;
            let (outcome, _) = play_counted(case, async |client, server, counts| {
                let (mut dying, mut other) = by_side(side, client, server);
                let piece = pattern(256 * 1024);
                let send = async {
                    while counts.rx.get() + counts.tx.get() < 4 * 1024 * 1024 {
                        dying.write_all(&piece).await.unwrap();
                    }
                    reset(dying);
                };
                let ((), (all, end)) = tokio::join!(send, read_out(&mut other));
                assert!(
                    all.len() >= 4 * 1024 * 1024,
                    "{engine:?} {side:?}: {}",
                    all.len()
                );
                assert_eq!(end, RESET, "{engine:?} {side:?}");
            })
            .await;
            assert_reset_by(&outcome, side);
        }
    }
}

#[tokio::test]
async fn reset_follows_end_of_other_direction() {
    for (engine, side) in engines_and_sides() {
        let case = Case::new(engine).await;
        let (outcome, _) = play(case, async |client, server| {
            let (dying, mut other) = by_side(side, client, server);
            other.shutdown().await.unwrap();
            let mut dying = dying;
            assert_eq!(dying.read(&mut [0; 1]).await.unwrap(), 0);
            dying.write_all(b"begun").await.unwrap();
            other.read_exact(&mut [0; 5]).await.unwrap();
            reset(dying);
            assert_eq!(
                read_out(&mut other).await,
                (vec![], RESET),
                "{engine:?} {side:?}"
            );
        })
        .await;
        assert_reset_by(&outcome, side);
    }
}

#[tokio::test]
async fn reset_after_own_end_reaches_writer() {
    for (engine, side) in engines_and_sides() {
        let case = Case::new(engine).await;
        let (outcome, _) = play(case, async |client, server| {
            let (mut dying, mut other) = by_side(side, client, server);
            dying.write_all(b"whole").await.unwrap();
            dying.shutdown().await.unwrap();
            assert_eq!(read_out(&mut other).await, (b"whole".to_vec(), Ok(())));
            reset(dying);
            let error = write_out(&mut other).await;
            let expected = [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
            assert!(expected.contains(&error), "{engine:?} {side:?}: {error}");
        })
        .await;
        assert_reset_by(&outcome, side);
    }
}

#[tokio::test]
async fn relay_ends_without_receiver_of_silent_peer() {
    for (engine, side) in engines_and_sides() {
        let case = Case::new(engine).await;
        let mut silent = None;
        let played = play(case, async |client, server| {
            let (mut dying, mut other) = by_side(side, client, server);
            dying.write_all(b"whole").await.unwrap();
            dying.shutdown().await.unwrap();
            assert_eq!(read_out(&mut other).await, (b"whole".to_vec(), Ok(())));
            reset(dying);
            silent = Some(other);
        });
        let ended = tokio::time::timeout(Duration::from_secs(60), played).await;
        let (outcome, _) = ended.unwrap_or_else(|_| panic!("{engine:?} {side:?} goes on"));
        assert_reset_by(&outcome, side);
        let error = write_out(&mut silent.unwrap()).await;
        let expected = [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
        assert!(expected.contains(&error), "{engine:?} {side:?}: {error}");
    }
}

/// As of a client that has all it asked for, while the server's last words are on their way.
#[tokio::test]
async fn end_behind_a_gone_peer_is_in_order() {
    for (engine, side) in engines_and_sides() {
        let case = Case::new(engine).await;
        let (outcome, _) = play(case, async |client, server| {
            let (mut gone, mut other) = by_side(side, client, server);
            gone.shutdown().await.unwrap();
            assert_eq!(read_out(&mut other).await, (Vec::new(), Ok(())));
            reset(gone);
            tokio::time::sleep(Duration::from_millis(100)).await;
            other.shutdown().await.unwrap();
        })
        .await;
        assert!(
            matches!(outcome, Outcome::Closed),
            "{engine:?} {side:?}: {outcome:?}"
        );
    }
}

#[tokio::test]
async fn cut_answer_is_reset_when_upload_fails() {
    for engine in ENGINES {
        let case = Case::new(engine).await;
        let (outcome, _) = play(case, async |mut client, mut server| {
            // The relay finds all of it at once, and writes before it reads.
            server.write_all(b"cut").await.unwrap();
            client.write_all(b"upload").await.unwrap();
            reset(server);
            assert_eq!(read_out(&mut client).await, (b"cut".to_vec(), RESET));
        })
        .await;
        assert_reset_by(&outcome, Side::Upstream);
    }
}

#[tokio::test]
async fn whole_answer_ends_when_upload_fails() {
    for engine in ENGINES {
        let case = Case::new(engine).await;
        let (outcome, _) = play(case, async |mut client, mut server| {
            server.write_all(b"whole").await.unwrap();
            server.shutdown().await.unwrap();
            client.write_all(b"upload").await.unwrap();
            reset(server);
            assert_eq!(read_out(&mut client).await, (b"whole".to_vec(), Ok(())));
            write_out(&mut client).await;
        })
        .await;
        assert_reset_by(&outcome, Side::Upstream);
    }
}

#[tokio::test(start_paused = true)]
async fn stalled_sink_of_gone_source_is_reset() {
    for engine in ENGINES {
        let case = Case::new(engine).await;
        let (outcome, _) = play(case, async |client, mut server| {
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
            reset(client);
            tokio::time::sleep(Duration::from_secs(3600)).await;
            assert_eq!(read_out(&mut server).await.1, RESET);
        })
        .await;
        assert_reset_by(&outcome, Side::Downstream);
    }
}

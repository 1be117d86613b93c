//! Urgent data (tcp(7)): reads of the relay's sockets stop at it. The urgent byte is dropped, as it is
//! for a peer that reads without SO_OOBINLINE; all others arrive in order.

use std::time::Duration;

use relay::Outcome;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::support::{Case, ENGINES, Engine, pattern, play};

/// A hang is a failure.
const LIMIT: Duration = Duration::from_secs(20);

/// More than a small read, less than the first window: all of it waits in the receiver's socket.
const BEFORE: usize = 40_000;

const BEHIND: usize = 10_000;

const URGENT: u8 = 0;

async fn send_urgent(stream: &TcpStream) {
    let send = || socket2::SockRef::from(stream).send_out_of_band(&[URGENT]);
    let sent = stream.async_io(Interest::WRITABLE, send).await;
    assert_eq!(sent.unwrap(), 1);
}

/// Sends the pattern of `before` and `behind` bytes with an urgent one in between.
async fn send_around_urgent(stream: &TcpStream, before: usize, behind: usize) {
    let data = pattern(before + behind);
    assert_eq!(stream.try_write(&data[..before]).unwrap(), before);
    send_urgent(stream).await;
    assert_eq!(stream.try_write(&data[before..]).unwrap(), behind);
}

#[tokio::test]
async fn end_behind_urgent_data_cuts_nothing_off() {
    for engine in ENGINES {
        for (before, behind) in [(BEFORE, BEHIND), (BEFORE, 0), (3, 2), (0, BEFORE)] {
            let mut case = Case::new(engine).await;
            send_around_urgent(&case.client, before, behind).await;
            case.client.shutdown().await.unwrap();
            let (outcome, _) = play(case, async |mut client, mut server| {
                let mut all = Vec::new();
                let read = timeout(LIMIT, server.read_to_end(&mut all)).await;
                read.expect("the end arrives").unwrap();
                let expected = pattern(before + behind);
                assert!(
                    all == expected,
                    "{engine:?}: {} of {before} + {behind} bytes",
                    all.len()
                );
                // The relay closes its sockets after this: one with unread bytes resets the connection.
                drop(server);
                let end = timeout(LIMIT, client.read(&mut [0; 1])).await.unwrap();
                assert_eq!(end.unwrap(), 0, "{engine:?}: {before} + {behind} bytes");
            })
            .await;
            assert!(matches!(outcome, Outcome::Closed), "{outcome:?}");
        }
    }
}

#[tokio::test]
async fn bytes_behind_urgent_data_pass_at_once() {
    for engine in [Engine::Splice, Engine::Copy] {
        for before in [BEFORE, 3, 0] {
            let case = Case::new(engine).await;
            let (outcome, _) = play(case, async |client, mut server| {
                for (before, behind) in [(before, BEHIND), (before, 3)] {
                    send_around_urgent(&client, before, behind).await;
                    let mut all = vec![0; before + behind];
                    let read = timeout(LIMIT, server.read_exact(&mut all)).await;
                    read.unwrap_or_else(|_| panic!("{engine:?} stalls behind {before} bytes"))
                        .unwrap();
                    assert!(all == pattern(before + behind), "{engine:?}");
                }
            })
            .await;
            assert!(matches!(outcome, Outcome::Closed), "{outcome:?}");
        }
    }
}

#[tokio::test]
async fn next_byte_passes_urgent_data() {
    for engine in ENGINES {
        for before in [BEFORE, 3] {
            let case = Case::new(engine).await;
            send_around_urgent(&case.client, before, BEHIND).await;
            let (outcome, _) = play(case, async |mut client, mut server| {
                let mut all = vec![0; before];
                server.read_exact(&mut all).await.unwrap();
                // What relays streams has read up to the urgent byte, and waits; `Relay` has read on.
                client.write_all(b"next").await.unwrap();
                all.resize(before + BEHIND + 4, 0);
                let read = timeout(LIMIT, server.read_exact(&mut all[before..])).await;
                read.unwrap_or_else(|_| panic!("{engine:?} stalls behind {before} bytes"))
                    .unwrap();
                let (data, next) = all.split_at(before + BEHIND);
                assert!(
                    data == pattern(before + BEHIND) && next == b"next",
                    "{engine:?}"
                );
            })
            .await;
            assert!(matches!(outcome, Outcome::Closed), "{outcome:?}");
        }
    }
}

#[tokio::test]
async fn bulk_is_spliced_behind_urgent_data() {
    const CHUNK: usize = 4 * 1024 * 1024;
    let case = Case::new(Engine::Splice).await;
    let (outcome, case) = play(case, async |mut client, mut server| {
        let data: Vec<u8> = pattern(CHUNK).iter().map(|byte| byte | 0x80).collect();
        let send = async {
            for _ in 0..4 {
                client.write_all(&data).await.unwrap();
                send_urgent(&client).await;
            }
            client.write_all(&data).await.unwrap();
            client.shutdown().await.unwrap();
        };
        let mut all = Vec::new();
        let receive = timeout(LIMIT, server.read_to_end(&mut all));
        let ((), received) = tokio::join!(send, receive);
        received.expect("the end arrives").unwrap();
        // One that another follows before it is read is data to the kernel.
        all.retain(|byte| *byte != URGENT);
        assert_eq!(all.len(), 5 * CHUNK);
        assert!(all.chunks(CHUNK).all(|chunk| chunk == data));
    })
    .await;
    assert!(matches!(outcome, Outcome::Closed), "{outcome:?}");
    let copied = case.counts.copied.get();
    assert!(copied < 2 * CHUNK as u64, "{copied} bytes were copied");
}

//! What a direction does at urgent data when pipes come and go. All else is tested by whole relays.

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::pool::PoolParams;

struct Uncounted;

impl Meter for Uncounted {
    fn relayed(&self, _: Direction, _: u64, _: bool) {}
}

/// A peer, and the socket that is connected to it.
async fn connected() -> (TcpStream, Socket) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let peer = TcpStream::connect(listener.local_addr().unwrap());
    let (peer, accepted) = tokio::join!(peer, listener.accept());
    let accepted = accepted.unwrap().0.into_std().unwrap();
    (peer.unwrap(), Socket::try_from(accepted).unwrap())
}

#[tokio::test]
async fn copied_up_to_urgent_data_is_not_spliced_from_there() {
    let (copying, splicing) = (PoolParams::COPYING, PoolParams::for_workers(1));
    for before in [SMALL_BYTES as usize + 10, 10] {
        let ((mut peer, source), (_reader, sink)) = (connected().await, connected().await);
        peer.write_all(&vec![1; before]).await.unwrap();
        SockRef::from(&peer).send_out_of_band(&[0]).unwrap();
        peer.write_all(&[1; 10]).await.unwrap();
        source.ready(Interest::PRIORITY).await.unwrap();
        let mut half = Half::new(Direction::Rx);
        half.bulk = true;
        let pool = Pool::new(copying);
        let mut passed = 0;
        while passed < before {
            source.ready(Interest::READABLE).await.unwrap();
            let read = half.read(&source, &sink, &pool, &Uncounted).unwrap();
            passed += read.unwrap_or_default();
        }
        half.run = 1;
        let pool = Pool::new(splicing);
        let read = half.read(&source, &sink, &pool, &Uncounted).unwrap();
        assert_eq!(read, Some(10), "{before} before");
    }
}

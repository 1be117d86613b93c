//! Ports of ours that lead to ports inside namespaces, so that a Prometheus outside reaches them.
//!
//! ```text
//!   Prometheus ─▶ 127.0.0.1:PORT ─ a thread ─▶ namespace, ADDRESS
//! ```

use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Scope;
use std::time::Duration;

use testkit::netns::Namespace;
use testkit::wait;

/// How often a port that is to be closed is looked at.
const TICK: Duration = Duration::from_millis(20);

/// Ends the forwarding of a scope when dropped, also when a test panics.
#[derive(Debug, Default)]
pub(crate) struct Stop(AtomicBool);

/// Sets a [`Stop`] when dropped.
#[derive(Debug)]
pub(crate) struct StopAtEnd<'a>(pub(crate) &'a Stop);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::Relaxed);
    }
}

/// Forwards connections to the returned address to `target` in `namespace`, until `stop` is set.
pub(crate) fn into<'s>(
    scope: &'s Scope<'s, '_>,
    stop: &'s Stop,
    namespace: &'s Namespace,
    target: SocketAddr,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    listener.set_nonblocking(true).unwrap();
    scope.spawn(move || {
        while !stop.0.load(Ordering::Relaxed) {
            match listener.accept() {
                Ok((near, _)) => {
                    scope.spawn(move || carry(near, namespace, target));
                }
                Err(_) => wait::pause(TICK),
            }
        }
    });
    addr
}

/// Carries one connection until either side ends it.
fn carry(near: TcpStream, namespace: &Namespace, target: SocketAddr) {
    let Ok(Ok(far)) = namespace.run(|| TcpStream::connect(target)) else {
        return;
    };
    if near.set_nonblocking(false).is_err() {
        return;
    }
    std::thread::scope(|scope| {
        for (from, to) in [(&near, &far), (&far, &near)] {
            scope.spawn(move || {
                let (mut from, mut to) = (from, to);
                let _ = io::copy(&mut from, &mut to);
                // The other direction has nothing more to wait for.
                let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
            });
        }
    });
}

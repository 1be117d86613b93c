//! A load balancer for TCP that leads each connection to the next of its servers.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// A running balancer. It lives as long as the test's process.
#[derive(Debug)]
pub(crate) struct Balancer {
    addr: SocketAddr,
    servers: Arc<Mutex<Vec<SocketAddr>>>,
    dead: Arc<AtomicBool>,
}

impl Balancer {
    pub(crate) fn start(servers: &[SocketAddr]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let servers = Arc::new(Mutex::new(servers.to_vec()));
        let dead = Arc::new(AtomicBool::new(false));
        let (shared, line) = (Arc::clone(&servers), Arc::clone(&dead));
        std::thread::spawn(move || {
            for (first, client) in listener.incoming().enumerate() {
                let servers = shared.lock().unwrap().clone();
                if let (Ok(client), false) = (client, servers.is_empty()) {
                    let server = servers[first % servers.len()];
                    let line = Arc::clone(&line);
                    std::thread::spawn(move || relay(&client, server, &line));
                }
            }
        });
        Self {
            addr,
            servers,
            dead,
        }
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Leads new connections to these servers; others stay.
    pub(crate) fn set(&self, servers: &[SocketAddr]) {
        *self.servers.lock().unwrap() = servers.to_vec();
    }

    /// From now on what either side sends is swallowed, and no connection is closed: the line is
    /// dead, and neither end is told.
    pub(crate) fn swallow(&self) {
        self.dead.store(true, Ordering::SeqCst);
    }
}

fn relay(client: &TcpStream, server: SocketAddr, dead: &Arc<AtomicBool>) {
    // Who cannot be connected to is an end for the client.
    let Ok(server) = TcpStream::connect(server) else {
        return;
    };
    let (from, to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
    let line = Arc::clone(dead);
    let back = std::thread::spawn(move || copy(&from, &to, &line));
    copy(client, &server, dead);
    back.join().unwrap();
}

fn copy(mut from: &TcpStream, mut to: &TcpStream, dead: &AtomicBool) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if !dead.load(Ordering::SeqCst) && to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    if dead.load(Ordering::SeqCst) {
        return;
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}

//! A load balancer for TCP that leads each connection to the next of its servers.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// A running balancer. It lives as long as the test's process.
#[derive(Debug)]
pub(crate) struct Balancer {
    addr: SocketAddr,
    servers: Arc<Mutex<Vec<SocketAddr>>>,
}

impl Balancer {
    pub(crate) fn start(servers: &[SocketAddr]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let servers = Arc::new(Mutex::new(servers.to_vec()));
        let shared = Arc::clone(&servers);
        std::thread::spawn(move || {
            for (turn, client) in listener.incoming().enumerate() {
                let servers = shared.lock().unwrap().clone();
                if let (Ok(client), false) = (client, servers.is_empty()) {
                    let server = servers[turn % servers.len()];
                    std::thread::spawn(move || relay(&client, server));
                }
            }
        });
        Self { addr, servers }
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Leads new connections to these servers; others stay.
    pub(crate) fn set(&self, servers: &[SocketAddr]) {
        *self.servers.lock().unwrap() = servers.to_vec();
    }
}

fn relay(client: &TcpStream, server: SocketAddr) {
    // Who cannot be connected to is an end for the client.
    let Ok(server) = TcpStream::connect(server) else {
        return;
    };
    let (from, to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
    let back = std::thread::spawn(move || copy(&from, &to));
    copy(client, &server);
    back.join().unwrap();
}

fn copy(mut from: &TcpStream, mut to: &TcpStream) {
    let _ = io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}

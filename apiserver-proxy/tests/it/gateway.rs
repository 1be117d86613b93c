//! Fake gateways whose every step a test writes down.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use crate::proxy::LIMIT;

/// Where a scripted gateway listens, and what its script returned for each connection.
#[derive(Debug)]
pub(crate) struct Scripted<T> {
    pub(crate) addr: SocketAddr,
    outcomes: Receiver<T>,
}

impl<T: Send + 'static> Scripted<T> {
    /// Runs `script` for each connection, on a thread of its own. The threads end with the test's
    /// process.
    pub(crate) fn start(script: impl Fn(TcpStream) -> T + Clone + Send + 'static) -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").unwrap(), script)
    }

    /// As [`Scripted::start`], on a socket that is bound already.
    pub(crate) fn on(
        listener: TcpListener,
        script: impl Fn(TcpStream) -> T + Clone + Send + 'static,
    ) -> Self {
        let addr = listener.local_addr().unwrap();
        let (sender, outcomes) = channel();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, script, sender) = (stream.unwrap(), script.clone(), sender.clone());
                stream.set_read_timeout(Some(LIMIT)).unwrap();
                stream.set_nodelay(true).unwrap();
                thread::spawn(move || sender.send(script(stream)));
            }
        });
        Self { addr, outcomes }
    }

    /// Waits for the script of the next connection to end.
    pub(crate) fn outcome(&self) -> T {
        self.outcomes.recv_timeout(LIMIT).unwrap()
    }
}

/// Reads a request's head to its empty line and not a byte further.
pub(crate) fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap();
        head.extend(byte);
    }
    String::from_utf8(head).unwrap()
}

/// Tells whether nothing at all arrives for `time`.
pub(crate) fn is_silent(stream: &mut TcpStream, time: Duration) -> bool {
    stream.set_read_timeout(Some(time)).unwrap();
    let read = stream.read(&mut [0]);
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    matches!(read, Err(error) if error.kind() == ErrorKind::WouldBlock)
}

/// Reads a CONNECT, consents, and sends back what it reads.
pub(crate) fn consent_and_echo(mut stream: TcpStream) -> String {
    let head = read_head(&mut stream);
    stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
    let mut buf = [0; 64 * 1024];
    loop {
        match stream.read(&mut buf) {
            Ok(0) | Err(_) => return head,
            Ok(count) if stream.write_all(&buf[..count]).is_err() => return head,
            Ok(_) => {}
        }
    }
}

/// A listener that no further connection gets through to until its queue is emptied.
#[derive(Debug)]
pub(crate) struct Clogged {
    pub(crate) addr: SocketAddr,
    listener: TcpListener,
    _queued: Vec<Socket>,
}

impl Clogged {
    /// Binds `addr` with a queue for one connection, and fills it.
    pub(crate) fn bind(addr: SocketAddr) -> Self {
        let socket = Socket::new(Domain::for_address(addr), Type::STREAM, None).unwrap();
        socket.bind(&addr.into()).unwrap();
        // The kernel drops a SYN when more connections wait than the backlog says.
        socket.listen(0).unwrap();
        let listener = TcpListener::from(socket);
        let addr = listener.local_addr().unwrap();
        let mut queued = Vec::new();
        loop {
            let client = Socket::new(Domain::for_address(addr), Type::STREAM, None).unwrap();
            let connected = client.connect_timeout(&addr.into(), Duration::from_millis(100));
            let full = connected.is_err();
            queued.push(client);
            if full {
                break;
            }
        }
        Self {
            addr,
            listener,
            _queued: queued,
        }
    }

    /// Empties the queue; returns the listener, to which connections under way now get through.
    pub(crate) fn clear(self) -> TcpListener {
        self.listener.set_nonblocking(true).unwrap();
        while self.listener.accept().is_ok() {}
        self.listener.set_nonblocking(false).unwrap();
        self.listener
    }
}

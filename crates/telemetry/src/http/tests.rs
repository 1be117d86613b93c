//! The server against real sockets, with peers that behave and peers that do not.

use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use testkit::tempdir::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpSocket, TcpStream, UnixStream};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::*;
use crate::admin;

mod slow;

/// An HTTP client that sends exactly the given bytes.
pub(crate) struct Client<S = TcpStream>(pub(crate) BufReader<S>);

#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut pairs = self.head.lines().filter_map(|line| line.split_once(": "));
        pairs
            .find(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
    }
}

fn tcp(address: &EndpointAddr) -> SocketAddr {
    let EndpointAddr::Tcp(address) = address else {
        panic!("{address} is not TCP")
    };
    *address
}

impl Client {
    pub(crate) async fn connect(address: &EndpointAddr) -> Self {
        let stream = TcpStream::connect(tcp(address)).await;
        Self(BufReader::new(stream.unwrap()))
    }
}

impl<S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin> Client<S> {
    pub(crate) async fn send(&mut self, text: &str) {
        self.0.get_mut().write_all(text.as_bytes()).await.unwrap();
    }

    pub(crate) async fn get(&mut self, path: &str) -> Reply {
        self.ask("GET", path, "", "").await
    }

    pub(crate) async fn ask(
        &mut self,
        method: &str,
        path: &str,
        headers: &str,
        body: &str,
    ) -> Reply {
        let length = body.len();
        self.send(&format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
        ))
        .await;
        self.reply(method != "HEAD").await.unwrap()
    }

    pub(crate) async fn reply(&mut self, with_body: bool) -> Option<Reply> {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if self.0.read_line(&mut head).await.ok()? == 0 {
                return None;
            }
        }
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let mut reply = Reply {
            status,
            head,
            body: String::new(),
        };
        if with_body {
            let length = reply.header("content-length").unwrap_or("0");
            let mut body = vec![0; length.parse().unwrap()];
            self.0.read_exact(&mut body).await.ok()?;
            reply.body = String::from_utf8(body).unwrap();
        }
        Some(reply)
    }

    pub(crate) async fn read_to_end(&mut self) -> usize {
        let mut rest = Vec::new();
        let _ = self.0.read_to_end(&mut rest).await;
        rest.len()
    }
}

/// `/hold` waits for a permit, `/big` answers [`BIG`] bytes, anything else answers `ok`.
struct Fake {
    permits: Semaphore,
    held: AtomicUsize,
    max_held: AtomicUsize,
    arrived: Semaphore,
    big: Bytes,
}

impl Fake {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            permits: Semaphore::new(0),
            held: AtomicUsize::new(0),
            max_held: AtomicUsize::new(0),
            arrived: Semaphore::new(0),
            big: Bytes::from(vec![b'x'; BIG]),
        })
    }

    async fn hold(&self) {
        let held = self.held.fetch_add(1, Ordering::SeqCst) + 1;
        self.max_held.fetch_max(held, Ordering::SeqCst);
        self.arrived.add_permits(1);
        self.permits.acquire().await.unwrap().forget();
        self.held.fetch_sub(1, Ordering::SeqCst);
    }

    async fn wait_for_arrivals(&self, count: u32) {
        self.arrived.acquire_many(count).await.unwrap().forget();
    }
}

impl Handler for Fake {
    fn is_probe(&self, path: &str) -> bool {
        admin::is_probe(path)
    }

    async fn handle(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let body = match request.uri().path() {
            "/hold" => {
                self.hold().await;
                Bytes::from_static(b"held")
            }
            "/big" => self.big.clone(),
            _ => Bytes::from_static(b"ok"),
        };
        Response::new(Full::new(body))
    }
}

const BIG: usize = 32 << 20;

struct Running {
    address: EndpointAddr,
    end: Option<oneshot::Sender<()>>,
    served: JoinHandle<()>,
}

impl Running {
    fn start(bound: Bound, fake: &Arc<Fake>) -> Self {
        let address = bound.local_addr().clone();
        let (end, ended) = oneshot::channel();
        let shutdown = async { drop(ended.await) };
        let served = tokio::spawn(serve(bound, fake.clone(), shutdown));
        Self {
            address,
            end: Some(end),
            served,
        }
    }

    fn local(fake: &Arc<Fake>) -> Self {
        let address = EndpointAddr::Tcp("127.0.0.1:0".parse().unwrap());
        Self::start(Bound::new(&address).unwrap(), fake)
    }

    /// Sends a request and does not wait for the answer.
    async fn request(&self, path: &str) -> Client {
        let mut client = Client::connect(&self.address).await;
        let head = format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n");
        client.send(&head).await;
        client
    }

    async fn get(&self, path: &str) -> Reply {
        Client::connect(&self.address).await.get(path).await
    }

    fn shut_down(&mut self) {
        self.end.take();
    }

    async fn ended(mut self) {
        self.shut_down();
        self.served.await.unwrap();
    }
}

#[tokio::test]
async fn port_zero_picks_a_port_and_keeps_connections() {
    let server = Running::local(&Fake::new());
    let mut client = Client::connect(&server.address).await;
    for _ in 0..3 {
        assert_eq!(client.get("/").await.body, "ok");
    }
    server.ended().await;
    assert_eq!(client.read_to_end().await, 0);
}

#[tokio::test]
async fn no_address_serves_until_shutdown() {
    let bound = Bound::new(&EndpointAddr::None).unwrap();
    assert_eq!(*bound.local_addr(), EndpointAddr::None);
    Running::start(bound, &Fake::new()).ended().await;
}

#[tokio::test]
async fn the_unspecified_address_serves_ipv4_as_well() {
    let fake = Fake::new();
    let server = Running::start(Bound::new(&"[::]:0".parse().unwrap()).unwrap(), &fake);
    let ipv4 = format!("127.0.0.1:{}", tcp(&server.address).port());
    let ipv4 = ipv4.parse().unwrap();
    assert_eq!(Client::connect(&ipv4).await.get("/").await.status, 200);
    server.ended().await;
}

async fn get_over(path: &Path) -> Reply {
    Client(BufReader::new(UnixStream::connect(path).await.unwrap()))
        .get("/")
        .await
}

#[tokio::test]
async fn unix_socket_is_private_and_only_it_is_removed() {
    let dir = TempDir::new("telemetry").unwrap();
    let path = dir.join("admin.sock");
    let bound = Bound::new(&EndpointAddr::Unix(path.clone())).unwrap();
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let server = Running::start(bound, &Fake::new());
    assert_eq!(get_over(&path).await.body, "ok");
    server.ended().await;
    assert!(!path.exists());

    // A file that has taken its place stays.
    let bound = Bound::new(&EndpointAddr::Unix(path.clone())).unwrap();
    let other = dir.join("other");
    std::fs::write(&other, "").unwrap();
    std::fs::rename(&other, &path).unwrap();
    drop(bound);
    assert!(path.exists());
}

fn assert_in_use(bound: io::Result<Bound>) {
    assert_eq!(bound.unwrap_err().kind(), io::ErrorKind::AddrInUse);
}

#[tokio::test]
async fn only_stale_sockets_are_replaced() {
    let dir = TempDir::new("telemetry").unwrap();
    let path = dir.join("admin.sock");
    let address = EndpointAddr::Unix(path.clone());

    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let bound = Bound::new(&address).unwrap();
    assert_in_use(Bound::new(&address));
    let server = Running::start(bound, &Fake::new());
    assert_eq!(get_over(&path).await.body, "ok");
    server.ended().await;

    std::fs::write(&path, "precious").unwrap();
    assert_in_use(Bound::new(&address));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
}

#[tokio::test]
async fn successor_takes_socket_once_it_serves() {
    let dir = TempDir::new("telemetry").unwrap();
    let path = dir.join("admin.sock");
    let address = EndpointAddr::Unix(path.clone());
    let inode = || std::fs::metadata(&path).unwrap().ino();
    let first = Running::start(Bound::new(&address).unwrap(), &Fake::new());
    let of_first = inode();

    drop(Bound::succeeding(&address).unwrap());
    assert_eq!(get_over(&path).await.body, "ok");
    assert_eq!(inode(), of_first);

    let second = Running::start(Bound::succeeding(&address).unwrap(), &Fake::new());
    while inode() == of_first {
        tokio::task::yield_now().await;
    }
    first.ended().await;
    assert_eq!(get_over(&path).await.body, "ok");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    second.ended().await;
    assert!(!path.exists());

    std::fs::write(&path, "precious").unwrap();
    assert_in_use(Bound::succeeding(&address));
}

#[tokio::test]
async fn port_is_exclusive_unless_shared_by_both() {
    let any = EndpointAddr::Tcp("127.0.0.1:0".parse().unwrap());
    let own = Bound::shared(&any).unwrap();
    assert!(own.shared_socket().is_none(), "a port of its own is shared");
    let address = own.local_addr().clone();
    for bind in [Bound::new, Bound::shared] {
        assert_in_use(bind(&address));
    }
    drop(own);
    let _first = Bound::shared(&address).unwrap();
    let second = Bound::shared(&address).unwrap();
    assert!(second.shared_socket().is_some());
    assert_in_use(Bound::new(&address));
}

#[tokio::test]
async fn longest_waiting_connection_is_evicted() {
    let server = Running::local(&Fake::new());
    let mut clients = Vec::new();
    for _ in 0..MAX_CONNECTIONS {
        let mut client = Client::connect(&server.address).await;
        assert_eq!(client.get("/").await.status, 200);
        clients.push(client);
    }
    assert_eq!(clients[0].get("/").await.status, 200);
    let mut late = Client::connect(&server.address).await;
    assert_eq!(late.get("/").await.body, "ok");
    assert_eq!(clients[1].read_to_end().await, 0);
    for index in [0, 2, MAX_CONNECTIONS - 1] {
        assert_eq!(clients[index].get("/").await.status, 200, "client {index}");
    }
    server.ended().await;
}

#[tokio::test]
async fn stalled_reader_blocks_no_others_and_is_cut() {
    let server = Running::local(&Fake::new());
    let mut stuck = server.request("/big").await;
    assert!(stuck.reply(false).await.is_some());
    assert_eq!(server.get("/").await.body, "ok");
    tokio::time::pause();
    tokio::time::sleep(STALL_TIMEOUT * 2).await;
    assert!(stuck.read_to_end().await < BIG);
    server.ended().await;
}

#[tokio::test(start_paused = true)]
async fn missing_head_times_out() {
    let server = Running::local(&Fake::new());
    let whole = "GET / HTTP/1.1\r\nhost: x\r\n\r\n"; // idle afterwards
    for beginning in ["", "GET / HT", "GET / HTTP/1.1\r\nhost: x\r\n", whole] {
        let start = Instant::now();
        let mut client = Client::connect(&server.address).await;
        client.send(beginning).await;
        if beginning == whole {
            assert_eq!(client.reply(true).await.unwrap().status, 200);
        }
        assert_eq!(client.read_to_end().await, 0, "{beginning}");
        let waited = start.elapsed();
        let limits = HEAD_TIMEOUT..HEAD_TIMEOUT * 2;
        assert!(limits.contains(&waited), "{beginning}: {waited:?}");
    }
    server.ended().await;
}

#[tokio::test]
async fn garbage_gets_400_and_too_large_a_head_431() {
    let server = Running::local(&Fake::new());
    let mut client = Client::connect(&server.address).await;
    client.send("\x16\x03\x01\x02\r\n\r\n").await;
    assert_eq!(client.reply(true).await.unwrap().status, 400);

    let mut client = Client::connect(&server.address).await;
    let long = "x".repeat(64 << 10);
    // The server may close before it has read everything.
    let request = format!("GET / HTTP/1.1\r\nlong: {long}\r\n\r\n");
    let _ = client.0.get_mut().write_all(request.as_bytes()).await;
    if let Some(reply) = client.reply(true).await {
        assert_eq!(reply.status, 431);
    }
    assert_eq!(server.get("/").await.status, 200);
    server.ended().await;
}

#[tokio::test]
async fn response_in_progress_finishes_at_shutdown() {
    let fake = Fake::new();
    let mut server = Running::local(&fake);
    let mut client = server.request("/hold").await;
    fake.wait_for_arrivals(1).await;
    server.shut_down();
    fake.permits.add_permits(1);
    assert_eq!(client.reply(true).await.unwrap().body, "held");
    server.ended().await;
}

#[tokio::test(start_paused = true)]
async fn endless_response_is_cut_at_shutdown() {
    let fake = Fake::new();
    let server = Running::local(&fake);
    let mut client = server.request("/hold").await;
    fake.wait_for_arrivals(1).await;
    let start = Instant::now();
    server.ended().await;
    assert!(start.elapsed() >= CLOSING_TIMEOUT);
    assert!(client.reply(true).await.is_none());
}

#[tokio::test(start_paused = true)]
async fn failing_to_accept_backs_off_and_recovers() {
    let calls = AtomicUsize::new(0);
    let accept = || {
        let call = calls.fetch_add(1, Ordering::Relaxed);
        async move {
            match call {
                0 => Err(io::Error::from(rustix::io::Errno::CONNABORTED)),
                1..12 => Err(io::Error::from(rustix::io::Errno::MFILE)),
                _ => Ok(call),
            }
        }
    };
    let start = Instant::now();
    let mut backoff = AcceptBackoff::default();
    let accepted = accept_patiently(&EndpointAddr::None, &mut backoff, accept);
    assert_eq!(accepted.await, 12);
    assert_eq!(start.elapsed().as_millis(), 5 * 255 + 3000);
}

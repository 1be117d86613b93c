//! Peers that read slowly or not at all, and probes beside them.

use super::*;

/// Opens a connection that asks for much and has little memory to receive it.
async fn slow_reader(server: &Running) -> Client {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let stream = socket.connect(tcp(&server.address)).await.unwrap();
    let mut client = Client(BufReader::new(stream));
    client.send("GET /big HTTP/1.1\r\nhost: x\r\n\r\n").await;
    client
}

/// Reads at most `rate` bytes each second until the server ends it, and returns how much came. Where time is
/// simulated, the kernel gets `real` time for the news that there is room again.
#[expect(
    clippy::disallowed_methods,
    reason = "waits for the kernel, whose time is not simulated"
)]
async fn read_slowly(client: Client, rate: usize, real: Duration) -> usize {
    let mut piece = vec![0; rate];
    let mut all = client.0.buffer().len();
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        match client.0.get_ref().try_read(&mut piece) {
            Ok(read) if read > 0 => {
                all += read;
                std::thread::sleep(real);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Ok(_) | Err(_) => return all,
        }
    }
}

/// Probes as a kubelet does: a connection of its own, and a second for the answer.
async fn kubelet_probe(server: &Running, path: &str) -> Result<u16, String> {
    let exchange = async {
        let mut client = Client::connect(&server.address).await;
        let head = format!(
            "GET {path} HTTP/1.1\r\nHost: {}\r\nUser-Agent: kube-probe/1.36\r\n\
             Accept: */*\r\nConnection: close\r\n\r\n",
            server.address
        );
        client.send(&head).await;
        client.reply(true).await.ok_or("closed without an answer")
    };
    match tokio::time::timeout(Duration::from_secs(1), exchange).await {
        Ok(Ok(reply)) => Ok(reply.status),
        Ok(Err(closed)) => Err(format!("{path}: {closed}")),
        Err(_) => Err(format!("{path}: no answer within a second")),
    }
}

#[tokio::test]
async fn probes_are_answered_beside_slow_readers() {
    let server = Running::local(&Fake::new());
    let mut readers = JoinSet::new();
    for index in 0..MAX_CONNECTIONS + 16 {
        let mut client = slow_reader(&server).await;
        if index < MAX_CONNECTIONS {
            assert!(client.reply(false).await.is_some(), "reader {index}");
        }
        readers.spawn(read_slowly(client, 1024, Duration::ZERO));
    }
    for path in "/healthz /livez /readyz /ready /readyz/shoot--a".split(' ') {
        assert_eq!(kubelet_probe(&server, path).await, Ok(200));
    }
    server.ended().await;
}

#[tokio::test(start_paused = true)]
async fn slow_reader_is_cut_at_response_limit() {
    let server = Running::local(&Fake::new());
    let start = Instant::now();
    let client = server.request("/big").await;
    let reading = read_slowly(client, BIG / 64, Duration::from_millis(5));
    let read = tokio::time::timeout(Duration::from_secs(600), reading).await;
    let waited = start.elapsed();
    assert!(
        read.is_ok_and(|read| read < BIG),
        "still served after {waited:?}"
    );
    let limits = RESPONSE_TIMEOUT..RESPONSE_TIMEOUT * 2;
    assert!(limits.contains(&waited), "{waited:?}");
    server.ended().await;
}

#[tokio::test]
async fn stalled_readers_are_cut_by_stall_limit() {
    let server = Running::local(&Fake::new());
    let mut stalled = Vec::new();
    for _ in 0..MAX_RESPONSES {
        let mut client = slow_reader(&server).await;
        assert_eq!(client.reply(false).await.unwrap().status, 200);
        stalled.push(client);
    }
    assert_eq!(server.get("/").await.status, 503);
    tokio::time::pause();
    tokio::time::sleep(STALL_TIMEOUT + Duration::from_secs(1)).await;
    assert_eq!(server.get("/").await.status, 200);
    server.ended().await;
}

#[tokio::test]
async fn excess_response_is_refused_with_503() {
    let fake = Fake::new();
    let server = Running::local(&fake);
    let mut clients = Vec::new();
    for _ in 0..MAX_RESPONSES {
        clients.push(server.request("/hold").await);
    }
    fake.wait_for_arrivals(u32::try_from(MAX_RESPONSES).unwrap())
        .await;
    let mut excess = Client::connect(&server.address).await;
    let reply = excess.get("/hold").await;
    assert_eq!(
        (reply.status, reply.header("connection")),
        (503, Some("close"))
    );
    assert_eq!(excess.read_to_end().await, 0);
    assert_eq!(kubelet_probe(&server, "/healthz").await, Ok(200));
    fake.permits.add_permits(clients.len());
    for client in &mut clients {
        assert_eq!(client.reply(true).await.unwrap().body, "held");
        assert_eq!(client.get("/").await.body, "ok");
    }
    assert_eq!(fake.max_held.load(Ordering::SeqCst), MAX_RESPONSES);
    server.ended().await;
}

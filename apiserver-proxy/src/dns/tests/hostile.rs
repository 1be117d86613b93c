//! Noise, silence and greed, none of which may hurt the server.

use std::time::Duration;

use tokio::net::TcpSocket;

use super::*;

#[tokio::test]
async fn noise_over_udp_changes_nothing() {
    let server = Running::start(&[]);
    let socket = server.socket().await;

    for bytes in noise() {
        // The queue may be full; then this one is lost, as on any network.
        socket.send(&bytes).await.ok();
    }

    assert_eq!(server.udp_a(ZONE).await.answers.len(), 2);
}

#[tokio::test]
async fn noise_over_tcp_closes_its_connection_alone() {
    let server = Running::start(&[]);
    let mut kept = TcpStream::connect(server.addr).await.unwrap();

    for bytes in noise() {
        let mut stream = TcpStream::connect(server.addr).await.unwrap();
        stream
            .write_u16(u16::try_from(bytes.len()).unwrap())
            .await
            .unwrap();
        stream.write_all(&bytes).await.ok();
        stream.shutdown().await.ok();
        // Ends, whether or not an error was reported; a reset says the same.
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).await.ok();
    }

    peer::write(&mut kept, &question(ZONE, RecordType::A)).await;
    assert_eq!(peer::read(&mut kept).await.answers.len(), 2);
}

#[tokio::test]
async fn an_answer_is_no_question() {
    let server = Running::start(&[]);
    let mut answer = question(ZONE, RecordType::A);
    answer.metadata.message_type = MessageType::Response;
    let socket = server.socket().await;
    let mut stream = TcpStream::connect(server.addr).await.unwrap();

    socket.send(&answer.to_vec().unwrap()).await.unwrap();
    let after = question(ZONE, RecordType::A);
    socket.send(&after.to_vec().unwrap()).await.unwrap();
    peer::write(&mut stream, &answer).await;

    assert_eq!(receive(&socket).await.metadata.id, after.metadata.id);
    assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
}

#[tokio::test]
async fn silent_connections_are_closed_and_give_way() {
    let limits = Limits {
        connections: 4,
        idle: Duration::from_millis(50),
        ..Limits::default()
    };
    let server = Running::start_with(&params(&[]), limits);
    let mut silent = TcpStream::connect(server.addr).await.unwrap();
    let mut half = TcpStream::connect(server.addr).await.unwrap();
    half.write_all(&[0, 40, 1, 2, 3]).await.unwrap();

    assert_eq!(server.udp_a(ZONE).await.answers.len(), 2);

    assert_eq!(silent.read(&mut [0]).await.unwrap(), 0);
    assert!(matches!(half.read(&mut [0]).await, Ok(0) | Err(_)));
    // Their source had as many as it may have.
    while served([127, 0, 0, 1], &server).await.is_none() {}
}

#[tokio::test]
async fn one_source_leaves_connections_to_others() {
    let limits = Limits {
        connections: 8,
        idle: Duration::from_secs(3600),
        ..Limits::default()
    };
    let server = Running::start_with(&params(&[]), limits);
    let mut all = Vec::new();
    while let Some(stream) = served([127, 0, 0, 1], &server).await {
        all.push(stream);
    }
    assert_eq!(all.len(), 4);
    for stream in &mut all {
        peer::write(stream, &question(ZONE, RecordType::A)).await;
        assert_eq!(peer::read(stream).await.answers.len(), 2);
    }

    assert!(served([127, 0, 0, 2], &server).await.is_some());
}

/// Asks on a new connection from `source`, and returns it if there is an answer.
async fn served(source: [u8; 4], server: &Running) -> Option<TcpStream> {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((source, 0).into()).unwrap();
    let mut stream = socket.connect(server.addr).await.unwrap();
    let message = question(ZONE, RecordType::A).to_vec().unwrap();
    let length = u16::try_from(message.len()).unwrap().to_be_bytes();
    let asked = [&length[..], &message].concat();
    // A refused one may be reset already.
    stream.write_all(&asked).await.ok()?;
    stream.peek(&mut [0]).await.ok().filter(|read| *read > 0)?;
    assert_eq!(peer::read(&mut stream).await.answers.len(), 2);
    Some(stream)
}

#[tokio::test]
async fn clients_that_read_no_answer_are_cut() {
    let limits = Limits {
        idle: Duration::from_millis(100),
        ..Limits::default()
    };
    let server = Running::start_with(&params(&[]), limits);
    let mut greedy = TcpStream::connect(server.addr).await.unwrap();
    let message = question(ZONE, RecordType::ANY).to_vec().unwrap();
    let framed = [
        &u16::try_from(message.len()).unwrap().to_be_bytes()[..],
        &message,
    ]
    .concat();
    let burst = framed.repeat(1000);

    // Writes until the server neither reads nor keeps the connection.
    while greedy.write_all(&burst).await.is_ok() {}

    assert_eq!(server.tcp_a(ZONE).await.answers.len(), 2);
}

/// Messages that are none: every short length, counts that promise too much, names that run in
/// circles or out of the message, and bytes without sense from a fixed seed.
fn noise() -> Vec<Vec<u8>> {
    let valid = question(ZONE, RecordType::A).to_vec().unwrap();
    let head = |counts: [u8; 8]| [&[1, 2, 1, 0][..], &counts].concat();
    let mut noise: Vec<Vec<u8>> = (0..valid.len()).map(|len| valid[..len].to_vec()).collect();
    noise.push(head([0xff; 8]));
    noise.push(head([0xff, 0xff, 0, 0, 0, 0, 0, 0]));
    noise.push([head([0, 1, 0, 0, 0, 0, 0, 0]), vec![0xc0, 12, 0, 1, 0, 1]].concat());
    noise.push([head([0, 1, 0, 0, 0, 0, 0, 0]), vec![0xc0, 0, 0, 1, 0, 1]].concat());
    noise.push([head([0, 1, 0, 0, 0, 0, 0, 0]), vec![0x3f; 400]].concat());
    noise.push([head([0, 0, 0, 0, 0, 0, 0, 3]), vec![0; 33]].concat());
    let mut state: u32 = 1;
    for len in 1..200 {
        let bytes = std::iter::repeat_with(|| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state.to_be_bytes()[0]
        });
        noise.push(bytes.take(len).collect());
        let mut bent = valid.clone();
        let place = len % bent.len();
        bent[place] ^= 0x81;
        noise.push(bent);
    }
    noise
}

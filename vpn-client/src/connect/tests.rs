//! The dialogue with gateways that behave, and with those that do not.

use tokio::io::{DuplexStream, duplex};

use super::*;

const VALUE: &str = "outbound|1194||vpn-seed-server-0.shoot--foo--bar.svc.cluster.local";

async fn asked(gateway: &mut DuplexStream) -> Result<Vec<u8>, ConnectError> {
    ask(gateway, "api.example.com:8132", "Reversed-VPN", VALUE).await
}

/// Asks a gateway that answers with `parts`, each written by itself, and then closes.
async fn answered(parts: &[&[u8]]) -> Result<Vec<u8>, ConnectError> {
    let (mut ours, mut theirs) = duplex(64 * 1024);
    let gateway = async move {
        let mut request = [0; 1024];
        let read = theirs.read(&mut request).await.unwrap();
        assert!(request[..read].ends_with(b"\r\n\r\n"));
        for part in parts {
            theirs.write_all(part).await.unwrap();
            tokio::task::yield_now().await;
        }
    };
    tokio::join!(asked(&mut ours), gateway).0
}

#[tokio::test]
async fn request_names_gateway_and_server() {
    let (mut ours, mut theirs) = duplex(4096);
    let gateway = async move {
        let mut request = vec![0; 1024];
        let read = theirs.read(&mut request).await.unwrap();
        request.truncate(read);
        theirs.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
        String::from_utf8(request).unwrap()
    };
    let (answer, request) = tokio::join!(asked(&mut ours), gateway);
    assert!(answer.unwrap().is_empty());
    assert_eq!(
        request,
        format!(
            "CONNECT api.example.com:8132 HTTP/1.1\r\nHost: api.example.com:8132\r\n\
             Reversed-VPN: {VALUE}\r\n\r\n"
        )
    );
}

#[tokio::test]
async fn bytes_behind_the_answer_are_the_servers() {
    let early = answered(&[b"HTTP/1.1 200 Connection established\r\n\r\n\x40\x03abc"]).await;
    assert_eq!(early.unwrap(), b"\x40\x03abc");
    let early = answered(&[b"HTTP/1.0 200 OK\r\nx: y\r\n\r\n"]).await;
    assert!(early.unwrap().is_empty());
}

#[tokio::test]
async fn answer_is_read_in_any_pieces() {
    let whole = b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\n";
    for cut in 1..whole.len() {
        let (one, other) = whole.split_at(cut);
        assert!(answered(&[one, other]).await.unwrap().is_empty(), "{cut}");
    }
    let bytes: Vec<&[u8]> = whole.chunks(1).collect();
    assert!(answered(&bytes).await.unwrap().is_empty());
}

#[tokio::test]
async fn interim_answers_are_passed_over() {
    let answer: [&[u8]; 2] = [
        b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n\r\nxyz",
    ];
    assert_eq!(answered(&answer).await.unwrap(), b"xyz");
    // Not without end, though.
    let many = b"HTTP/1.1 100 Continue\r\n\r\n".repeat(1000);
    let error = answered(&[&many]).await.unwrap_err();
    assert_eq!(error.reason(), "malformed", "{error}");
}

#[tokio::test]
async fn refusals_say_what_to_look_at() {
    for (status, hint) in [
        (308, "endpoint.tcpPort"),
        (302, "a redirect"),
        (400, "endpoint.header"),
        (403, "clients of this address"),
        (404, "no route"),
        (431, "longer"),
        (503, "reaches no server"),
        (504, "does not answer"),
        (599, "internal error"),
        (101, "no answer that a CONNECT has"),
        (418, "no answer that a CONNECT has"),
    ] {
        let head = format!("HTTP/1.1 {status} x\r\nlocation: https://a/\r\n\r\n<html>");
        let error = answered(&[head.as_bytes()]).await.unwrap_err();
        assert!(matches!(error, ConnectError::Refused { status: told } if told == status));
        assert_eq!(error.reason(), "refused_by_gateway");
        let text = error.to_string();
        assert!(
            text.contains(hint) && text.contains(&status.to_string()),
            "{text}"
        );
    }
}

#[tokio::test]
async fn invalid_answers_are_distinct_errors() {
    for (answer, reason) in [
        (b"SSH-2.0-OpenSSH_9.2\r\n".as_slice(), "malformed"),
        (b"\x16\x03\x01\x02\x00", "malformed"),
        (b"HTTP/1.1 200 OK\n\n", "malformed"),
        (b"HTTP/2.0 200 OK\r\n\r\n", "malformed"),
        (b"HTTP/1.1 200 OK\r\n", "closed"),
        (b"", "closed"),
    ] {
        let error = answered(&[answer]).await.unwrap_err();
        assert_eq!(error.reason(), reason, "{answer:?}: {error}");
    }
    let long = format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "y".repeat(ANSWER_BYTES));
    let error = answered(&[long.as_bytes()]).await.unwrap_err();
    assert!(
        matches!(error, ConnectError::Answer(HeadError::TooLong)),
        "{error}"
    );
}

#[tokio::test]
async fn closed_gateway_is_an_error() {
    let (mut ours, theirs) = duplex(4096);
    drop(theirs);
    assert_eq!(asked(&mut ours).await.unwrap_err().reason(), "reset");
}

//! Names that are not ours: which server is asked, and what its client receives.

use std::time::Duration;

use super::peer::{self, Peer, Via};
use super::*;

#[tokio::test]
async fn other_names_are_asked_of_others() {
    let mut other = Peer::answering("192.0.2.1");
    let server = Running::start(&[other.addr]);
    let message = question("Example.com.", RecordType::A);

    let answer = server.udp(&message).await;

    assert_eq!(addresses(&answer), ["192.0.2.1"]);
    assert_eq!(answer.answers[0].ttl, 60);
    assert!(answer.metadata.recursion_available && !answer.metadata.authoritative);
    let (via, asked) = other.asked.recv().await.unwrap();
    assert_eq!(via, Via::Udp);
    assert_eq!(asked.queries[0].name().to_ascii(), "Example.com.");
    assert!(asked.metadata.recursion_desired && asked.edns.is_none());
    assert_eq!(addresses(&server.tcp(&message).await), ["192.0.2.1"]);
}

#[tokio::test]
async fn the_zone_is_never_asked_of_others() {
    let mut other = Peer::answering("192.0.2.1");
    let server = Running::start(&[other.addr]);

    let own = server.udp_a(ZONE).await;
    let below = server.udp_a(&format!("a.{ZONE}")).await;

    assert_eq!(addresses(&own), ["10.0.0.2", "10.0.0.3"]);
    assert!(own.metadata.recursion_available);
    assert_eq!(below.metadata.response_code, ResponseCode::NXDomain);
    assert!(other.asked.try_recv().is_err());
}

#[tokio::test]
async fn search_path_suffix_is_forwarded() {
    let mut other = Peer::failing(ResponseCode::NXDomain);
    let server = Running::start(&[other.addr]);
    let searched = format!("{ZONE}.svc.cluster.local.");

    let answer = server.udp_a(&searched).await;

    assert_eq!(answer.metadata.response_code, ResponseCode::NXDomain);
    let (_, asked) = other.asked.recv().await.unwrap();
    assert_eq!(asked.queries[0].name().to_ascii(), searched);
}

#[tokio::test]
async fn only_dnssec_option_is_forwarded() {
    let mut other = Peer::answering("192.0.2.1");
    let server = Running::start(&[other.addr]);
    let mut message = question("example.com", RecordType::A);
    message.metadata.checking_disabled = true;
    message
        .edns
        .insert(Edns::new())
        .set_max_payload(4000)
        .set_dnssec_ok(true);

    let answer = server.udp(&message).await;

    let (_, asked) = other.asked.recv().await.unwrap();
    let edns = asked.edns.expect("an OPT record");
    assert_eq!(edns.max_payload(), 1232);
    assert!(edns.flags().dnssec_ok && asked.metadata.checking_disabled);
    assert!(answer.edns.is_some());
}

#[tokio::test]
async fn a_truncated_answer_is_had_in_full_over_tcp() {
    let many: Vec<String> = (0..60).map(|last| format!("192.0.2.{last}")).collect();
    let expected = many.clone();
    let mut other = Peer::start(move |via, question| {
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let mut answer = peer::records(question, if via == Via::Udp { &[] } else { &many });
        answer.metadata.truncation = via == Via::Udp;
        Some(answer)
    });
    let server = Running::start(&[other.addr]);
    let message = question("example.com", RecordType::A);

    let whole = server.tcp(&message).await;
    let cut = server.udp(&message).await;

    assert_eq!(addresses(&whole), expected);
    assert!(!whole.metadata.truncation);
    assert!(cut.metadata.truncation && cut.answers.len() < expected.len());
    assert_eq!(other.asked.recv().await.unwrap().0, Via::Udp);
    assert_eq!(other.asked.recv().await.unwrap().0, Via::Tcp);
}

#[tokio::test]
async fn incomplete_answer_stays_truncated() {
    let other = Peer::start(|via, question| {
        let mut answer = peer::records(question, &["192.0.2.1"]);
        answer.metadata.truncation = true;
        // Over TCP the connection closes without an answer.
        (via == Via::Udp).then_some(answer)
    });
    let server = Running::start(&[other.addr]);

    let answer = server.udp_a("example.com").await;
    // Over TCP it would pass for all there is.
    let failed = server.tcp(&question("example.com", RecordType::A)).await;

    assert!(answer.metadata.truncation);
    assert_eq!(failed.metadata.response_code, ResponseCode::ServFail);
    let second = Peer::answering("192.0.2.2");
    let server = Running::start_with(&params(&[other.addr, second.addr]), patient());
    let whole = server.tcp(&question("example.com", RecordType::A)).await;
    assert_eq!(addresses(&whole), ["192.0.2.2"]);
    assert!(!whole.metadata.truncation);
}

/// Limits under which nothing but a failure ends the wait for a server.
fn patient() -> Limits {
    let never = Duration::from_secs(3600);
    Limits {
        question: never,
        patience: never,
        ..Limits::default()
    }
}

#[tokio::test]
async fn failing_and_silent_servers_are_passed_over() {
    let impatient = Limits {
        patience: Duration::from_millis(1),
        ..Limits::default()
    };
    let failing = |code| (Peer::failing(code).addr, patient());
    for (first, limits) in [
        (peer::unused(), patient()),
        failing(ResponseCode::ServFail),
        failing(ResponseCode::Refused),
        failing(ResponseCode::NotImp),
        (Peer::silent().addr, impatient),
    ] {
        let second = Peer::answering("192.0.2.2");
        let server = Running::start_with(&params(&[first, second.addr]), limits);

        let answer = server.udp_a("example.com").await;

        assert_eq!(addresses(&answer), ["192.0.2.2"]);
    }
}

#[tokio::test]
async fn first_failure_is_reported_when_all_fail() {
    let failing = |code| Peer::failing(code).addr;
    let two = [ResponseCode::Refused, ResponseCode::ServFail].map(failing);
    for (servers, code) in [
        (&two[..], ResponseCode::Refused),
        (&[peer::unused()], ResponseCode::ServFail),
    ] {
        let server = Running::start_with(&params(servers), patient());

        let answer = server.udp_a("example.com").await;

        assert_eq!(answer.metadata.response_code, code);
    }
}

#[tokio::test]
async fn question_fails_after_timeout_if_unanswered() {
    let mut other = Peer::silent();
    let limits = Limits {
        question: Duration::from_millis(50),
        ..Limits::default()
    };
    let server = Running::start_with(&params(&[other.addr]), limits);
    let message = question("example.com", RecordType::A);

    for answer in [server.udp(&message).await, server.tcp(&message).await] {
        assert_eq!(answer.metadata.response_code, ResponseCode::ServFail);
        other.asked.recv().await.expect("it was asked");
    }
    assert_eq!(Limits::default().question, Duration::from_secs(5));
}

#[tokio::test]
async fn questions_fail_at_once_above_the_limit() {
    let mut other = Peer::silent();
    let limits = Limits {
        questions: 3, // of which one asker has two
        patience: Duration::from_secs(60),
        question: Duration::from_secs(60),
        ..Limits::default()
    };
    let server = Running::start_with(&params(&[other.addr]), limits);
    let mut waiting = Vec::new();
    for _ in 0..2 {
        let socket = server.socket().await;
        let message = question("example.com", RecordType::A);
        socket.send(&message.to_vec().unwrap()).await.unwrap();
        other.asked.recv().await.unwrap();
        waiting.push(socket);
    }

    let refused = server.udp_a("example.org").await;
    let own = server.udp_a(ZONE).await;
    let another = UdpSocket::bind("127.0.0.2:0").await.unwrap();
    another.connect(server.addr).await.unwrap();
    let message = question("example.net", RecordType::A);
    another.send(&message.to_vec().unwrap()).await.unwrap();
    let (_, asked) = other.asked.recv().await.unwrap();

    assert_eq!(asked.queries, message.queries, "another asker has a place");
    assert_eq!(refused.metadata.response_code, ResponseCode::ServFail);
    assert_eq!(own.answers.len(), 2);
    for socket in waiting {
        assert!(
            socket.try_recv(&mut [0]).is_err(),
            "still being asked of others"
        );
    }
}

#[tokio::test]
async fn a_question_that_ended_makes_room_for_another() {
    let other = Peer::start(|_, question| {
        let silent = question.queries[0].name().to_ascii() == "silent.example.";
        (!silent).then(|| peer::records(question, &["192.0.2.1"]))
    });
    let limits = Limits {
        questions: 1,
        question: Duration::from_millis(50),
        ..Limits::default()
    };
    let server = Running::start_with(&params(&[other.addr]), limits);

    let silent = server.udp_a("silent.example").await;
    let answered = server.udp_a("example.com").await;

    assert_eq!(silent.metadata.response_code, ResponseCode::ServFail);
    assert_eq!(addresses(&answered), ["192.0.2.1"]);
}

#[tokio::test]
async fn answer_to_another_question_is_ignored() {
    let other = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let server = Running::start(&[other.local_addr().unwrap()]);
    let asker = tokio::spawn(async move { server.udp_a("example.com").await });
    let mut buf = [0; 512];
    let (len, from) = other.recv_from(&mut buf).await.unwrap();
    let asked = Message::from_vec(&buf[..len]).unwrap();
    let right = peer::records(&asked, &["192.0.2.1"]);
    let mut other_id = peer::records(&asked, &["203.0.113.1"]);
    other_id.metadata.id = asked.metadata.id.wrapping_add(1);
    let mut other_name = peer::records(&asked, &["203.0.113.2"]);
    other_name.queries[0].set_name(Name::from_ascii("example.org.").unwrap());
    let mut no_question = peer::records(&asked, &["203.0.113.3"]);
    no_question.queries.clear();
    let mut echo = asked.clone();
    echo.add_answers(peer::records(&asked, &["203.0.113.4"]).answers);
    let broken = [&buf[..2], &[0xff; 20]].concat();

    for message in [other_id, other_name, no_question, echo] {
        other
            .send_to(&message.to_vec().unwrap(), from)
            .await
            .unwrap();
    }
    other.send_to(&broken, from).await.unwrap();
    other.send_to(&[], from).await.unwrap();
    other.send_to(&right.to_vec().unwrap(), from).await.unwrap();

    assert_eq!(addresses(&asker.await.unwrap()), ["192.0.2.1"]);
}

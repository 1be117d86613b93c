//! How a process ends that another one replaces, or has tried to.

use super::*;
use crate::probes::over_unix;

/// As where a roll is taken back: the newcomer goes, and who handed over has no listener.
#[test]
fn process_left_alone_ends_to_be_started_anew() {
    let place = Place::new();
    let mut first = place.start(json!({}));
    let _client = place.open();
    let mut second = place.start(json!({}));
    assert_eq!((active(&first), active(&second)), (0.0, 1.0));
    second.child.kill().unwrap();
    assert_eq!(first.child.wait_exit(LIMIT).unwrap().code(), Some(0));
    let _third = place.start(json!({}));
    says_back(&mut place.open(), b"served again");
}

#[test]
fn connections_are_refused_while_old_ones_end() {
    let place = Place::new();
    let mut first = place.start(json!({ "drain": { "delay": "0s", "timeout": "15s" } }));
    let mut client = place.open();
    first.child.signal(Signal::TERM).unwrap();
    let address = SocketAddr::from(([127, 0, 0, 1], place.port));
    let refused = || {
        let connected = TcpStream::connect_timeout(&address, Duration::from_millis(100));
        connected.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
    };
    wait::until("a refusal", Duration::from_secs(10), refused).unwrap();
    says_back(&mut client, b"still here");
}

#[test]
fn exiting_process_ends_once_it_is_replaced() {
    let place = Place::new();
    let exit = json!({ "handover": {
        "socket": place.directory.join("handover.sock"), "afterwards": "exit",
    } });
    let mut first = place.start(exit.clone());
    let mut client = place.open();
    let second = place.start(exit);
    assert_eq!(first.child.wait_exit(LIMIT).unwrap().code(), Some(0));
    says_back(&mut client, b"still here");
    assert_eq!(active(&second), 1.0);
    says_back(&mut place.open(), b"also here");
}

#[test]
fn drain_after_given_up_handover_resets_none() {
    for serving in [false, true] {
        let place = Place::new();
        let mut first = place.start(json!({ "drain": { "delay": "0s", "timeout": "10s" } }));
        // A newcomer that is gone once it has the listening sockets, or says that it serves.
        let mut newcomer = UnixStream::connect(place.directory.join("handover.sock")).unwrap();
        newcomer.set_read_timeout(Some(LIMIT)).unwrap();
        let hello = r#"{"type":"hello","lowest":1,"highest":1}"#;
        assert_eq!(says(&mut newcomer, hello)["type"], "agreed");
        if serving {
            assert_eq!(hears(&mut newcomer)["type"], "sockets");
            let settled = says(&mut newcomer, r#"{"type":"serving"}"#);
            assert_eq!(settled["type"], "settled");
        }
        drop(newcomer);
        let given_up = || {
            let labels = [("direction", "out"), ("outcome", "given_up")];
            metrics(first.probes).value("rhizome_handovers_total", &labels) == Some(1.0)
        };
        wait::until("the handover to be given up", LIMIT, given_up).unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], place.port));
        let served = AtomicUsize::new(0);
        thread::scope(|scope| {
            let knock = || loop {
                let mut stream = match TcpStream::connect(address) {
                    Ok(stream) => stream,
                    Err(error) => return assert_eq!(error.kind(), ErrorKind::ConnectionRefused),
                };
                stream.set_read_timeout(Some(LIMIT)).unwrap();
                stream.write_all(b"!").unwrap();
                assert!(read(&mut stream, 28 + 1).ends_with(b"!"));
                served.fetch_add(1, Ordering::Relaxed);
            };
            (0..4).for_each(|_| drop(scope.spawn(knock)));
            let some = || served.load(Ordering::Relaxed) > 200;
            wait::until("clients to be served", LIMIT, some).unwrap();
            first.child.signal(Signal::TERM).unwrap();
        });
        assert_eq!(first.child.wait_exit(LIMIT).unwrap().code(), Some(0));
    }
}

#[test]
fn draining_process_hands_over_what_is_left() {
    let place = Place::new();
    let mut first = place.start(json!({ "drain": { "delay": "0s", "timeout": "60s" } }));
    let mut client = place.open();
    first.child.signal(Signal::TERM).unwrap();
    let address = SocketAddr::from(([127, 0, 0, 1], place.port));
    let refused = || TcpStream::connect(address).is_err();
    wait::until("a refusal", LIMIT, refused).unwrap();
    let second = place.start(json!({}));
    let done = || {
        let labels = [("direction", "in"), ("outcome", "done")];
        metrics(second.probes).value("rhizome_handovers_total", &labels) == Some(1.0)
    };
    wait::until("the handover to be done", LIMIT, done).unwrap();
    assert_eq!(first.child.wait_exit(LIMIT).unwrap().code(), Some(0));
    says_back(&mut client, b"still here");
    assert_eq!(active(&second), 1.0);
}

#[test]
fn drained_process_exits_once_it_is_replaced() {
    let place = Place::new();
    let admin = place.directory.join("admin.sock");
    let mut first = place.start(json!({
        "handover": { "socket": place.directory.join("handover.sock"), "afterwards": "exit" },
        "admin": { "address": format!("unix:{}", admin.display()) },
        "drain": { "delay": "0s", "timeout": "60s" },
    }));
    over_unix(&admin, "POST", "/drain");
    let address = SocketAddr::from(([127, 0, 0, 1], place.port));
    let refused = || TcpStream::connect(address).is_err();
    wait::until("a refusal", LIMIT, refused).unwrap();
    let _second = place.start(json!({}));
    assert_eq!(first.child.wait_exit(LIMIT).unwrap().code(), Some(0));
}

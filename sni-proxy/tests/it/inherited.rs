//! Sockets that a service manager passes (sd_listen_fds(3)): taken by name, or by port.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, ExitStatus, Stdio};

use socket2::SockRef;
use testkit::tempdir::TempDir;
use testkit::upstream::{Behavior, Upstream};
use testkit::{sockets, wait};

use crate::support::{Client, LIMIT, routes_of};

/// The program, ended with the value.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts the program with `socket` as descriptor 3, announced under `names`.
fn activate(dir: &TempDir, socket: &TcpListener, variables: &str) -> Process {
    // The socket travels as standard input, which a shell can move without unsafe code.
    let script = format!("exec 3<&0 </dev/null; {variables} exec \"$0\" --config sni-proxy.yaml");
    let input = OwnedFd::from(socket.try_clone().unwrap());
    let log = fs::File::create(dir.join("log")).unwrap();
    let child = Command::new("sh")
        .args(["-c", &script, env!("CARGO_BIN_EXE_sni-proxy")])
        .current_dir(dir.path())
        .stdin(Stdio::from(input))
        .stdout(Stdio::null())
        .stderr(log)
        .spawn();
    Process(child.unwrap())
}

fn set_up(address: &str, upstream: SocketAddr) -> TempDir {
    let dir = TempDir::new("activation").unwrap();
    let config = format!(
        r#"
workers: 2
probes: {{ address: "127.0.0.1:0" }}
admin: {{ address: "" }}
listeners:
- {{ name: other, address: "127.0.0.1:0", protocol: connect }}
- {{ name: tls, address: "{address}", protocol: tls }}
routing: {{ file: routes.yaml }}
"#
    );
    dir.write("sni-proxy.yaml", config).unwrap();
    dir.write("routes.yaml", routes_of(&[("a", upstream)]))
        .unwrap();
    dir
}

#[test]
fn inherited_socket_outlives_process() {
    let upstream = Upstream::start(Behavior::Echo).unwrap();
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = socket.local_addr().unwrap();
    for (configured, names) in [
        // By name, whatever the port; without names, by the port.
        ("127.0.0.1:1".to_owned(), "LISTEN_FDNAMES=tls"),
        (addr.to_string(), ""),
        (addr.to_string(), "LISTEN_FDNAMES=connection"),
    ] {
        let dir = set_up(&configured, upstream.addr());
        let mut early = Client::hello(addr, "a.test");
        let variables = format!("LISTEN_PID=$$ LISTEN_FDS=1 {names}");
        let process = activate(&dir, &socket, &variables);
        let hello = testkit::client_hello::ClientHello::for_name("a.test").encode();
        assert_eq!(
            early.receive(hello.len()),
            hello,
            "{names}: who came before is served"
        );
        for _ in 0..10 {
            Client::established(addr, "a.test");
        }
        // It is written by a thread of its own.
        let named = wait::until("the log to name the address", LIMIT, || {
            let log = fs::read_to_string(dir.join("log")).unwrap();
            log.contains(&addr.to_string())
        });
        named.unwrap();
        drop(process);
        early.end();
    }
    let _queued = Client::hello(addr, "a.test"); // still listening, no process accepts
}

#[test]
fn sockets_of_another_process_are_left_alone() {
    let upstream = Upstream::start(Behavior::Echo).unwrap();
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let dir = set_up("127.0.0.1:0", upstream.addr());
    let _process = activate(
        &dir,
        &socket,
        "LISTEN_PID=1 LISTEN_FDS=1 LISTEN_FDNAMES=tls",
    );
    let mut bound = None;
    let listening = wait::until("the listener to be bound", LIMIT, || {
        let log = fs::read_to_string(dir.join("log")).unwrap_or_default();
        if !log.contains("serving probes") {
            return false; // it is bound before it listens
        }
        let line = log.lines().find(|line| line.contains("listener=tls"));
        bound = line.and_then(|line| line.split("address=").nth(1)?.trim().parse().ok());
        bound.is_some()
    });
    listening.unwrap();
    let bound: SocketAddr = bound.unwrap();
    assert_ne!(bound, socket.local_addr().unwrap());
    Client::established(bound, "a.test");
}

#[test]
fn values_that_make_no_sense_end_the_program() {
    let upstream = Upstream::start(Behavior::Echo).unwrap();
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    for variables in [
        "LISTEN_PID=$$ LISTEN_FDS=many",
        "LISTEN_PID=$$ LISTEN_FDS=3", // descriptors 4 and 5 are not there
    ] {
        let dir = set_up("127.0.0.1:0", upstream.addr());
        let process = activate(&dir, &socket, variables);
        assert_eq!(ended(process).code(), Some(1), "{variables}");
    }
}

fn ended(mut process: Process) -> ExitStatus {
    let mut status = None;
    let ended = wait::until("the program to end", LIMIT, || {
        status = process.0.try_wait().unwrap();
        status.is_some()
    });
    ended.unwrap();
    status.unwrap()
}

#[test]
fn inherited_socket_excludes_handover() {
    let upstream = Upstream::start(Behavior::Echo).unwrap();
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let dir = set_up("127.0.0.1:0", upstream.addr());
    let mut config = fs::read_to_string(dir.join("sni-proxy.yaml")).unwrap();
    let own = dir.join("handover.sock").display().to_string();
    config += &format!("handover: {{ socket: {own} }}\n");
    dir.write("sni-proxy.yaml", config).unwrap();
    let own = fs::Permissions::from_mode(0o700);
    fs::set_permissions(dir.path(), own).unwrap();
    let process = activate(&dir, &socket, "LISTEN_PID=$$ LISTEN_FDS=1");
    assert_eq!(ended(process).code(), Some(64));
    let log = fs::read_to_string(dir.join("log")).unwrap();
    assert!(log.contains("LISTEN_FDS"), "{log}");
}

#[test]
fn options_that_are_off_are_put_back_on_inherited_socket() {
    let upstream = Upstream::start(Behavior::Echo).unwrap();
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    SockRef::from(&socket).set_keepalive(true).unwrap();
    let addr = socket.local_addr().unwrap();
    let dir = set_up(&addr.to_string(), upstream.addr());
    let config = fs::read_to_string(dir.join("sni-proxy.yaml")).unwrap();
    dir.write("sni-proxy.yaml", config + "tcp: { keepalive: 0s }\n")
        .unwrap();
    let _process = activate(&dir, &socket, "LISTEN_PID=$$ LISTEN_FDS=1");
    // It was accepted after the options were set.
    Client::established(addr, "a.test");
    let client = Client::established(addr, "a.test");
    assert!(!sockets::keeps_alive(client.addr()).unwrap());
    assert!(!SockRef::from(&socket).keepalive().unwrap());
}

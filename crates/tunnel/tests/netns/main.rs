//! TUN devices between two real network stacks, with and without their offloads.
//!
//! ```text
//!   namespace a: TCP, UDP ─▶ TUN ─▶ Port ─▶ Segments ─▶ Batch ─▶ Port ─▶ TUN ─▶ namespace b
//! ```
//!
//! Needs root, or a user, network and mount namespace of its own.
#![expect(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

mod carrier;

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use testkit::netns::Namespace;
use tunnel::device::{Device, DeviceError, Port};
use tunnel::settings::DeviceName;
use udp::{BufferSizes, Datagrams, MtuDiscovery, Options, Outbox, connect};

use carrier::{Carried, Carrier};

const DEVICE: &str = "rhizome0";
const PORT: u16 = 7000;
/// Bytes of a transfer.
const TRANSFER: usize = 8 << 20;

/// Two stacks whose only network is a pair of TUN devices.
struct Ends {
    a: Namespace,
    b: Namespace,
    carrier: Carrier,
}

impl Ends {
    fn new(offloads: bool, joins: bool) -> Self {
        let end = |label: &str, number: u8| {
            let namespace = Namespace::new(label).unwrap();
            let device = namespace.run(|| open(offloads).unwrap()).unwrap();
            for cidr in [format!("10.9.0.{number}/24"), format!("fd09::{number}/64")] {
                namespace.add_address(DEVICE, &cidr).unwrap();
            }
            (namespace, device)
        };
        let ((a, near), (b, far)) = (end("a", 1), end("b", 2));
        Self {
            a,
            b,
            carrier: Carrier::start(near, far, joins),
        }
    }
}

fn open(offloads: bool) -> Result<Device, DeviceError> {
    Device::open(&DeviceName::default(), offloads)
}

/// Sends bytes over TCP from `a` to `b`, and looks whether the same arrive.
fn transfer(ends: &Ends, address: &str) {
    let address = SocketAddr::new(address.parse().unwrap(), PORT);
    let byte = |at: usize| u8::try_from(at % 253).unwrap();
    let sent: Vec<u8> = (0..TRANSFER).map(byte).collect();
    let listener = ends.b.run(|| TcpListener::bind(address).unwrap()).unwrap();
    let mut stream = ends.a.run(|| TcpStream::connect(address).unwrap()).unwrap();
    let (mut accepted, _) = listener.accept().unwrap();
    let received = std::thread::scope(|scope| {
        scope.spawn(|| {
            stream.write_all(&sent).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
        });
        let mut received = Vec::new();
        accepted.read_to_end(&mut received).unwrap();
        received
    });
    assert!(received == sent, "{} bytes of {TRANSFER}", received.len());
}

#[test]
fn tcp_passes_in_super_packets_both_ways() {
    for address in ["10.9.0.2", "fd09::2"] {
        let ends = Ends::new(true, true);
        transfer(&ends, address);
        let Carried { reads, written } = ends.carrier.stop();
        assert_eq!(
            (written.failed, written.join_refused),
            (0, 0),
            "{written:?}"
        );
        assert!(
            reads * 2 < written.packets,
            "{address}: {reads} reads, {written:?}"
        );
        assert!(
            written.writes * 2 < written.packets,
            "{address}: {written:?}"
        );
    }
}

#[test]
fn tcp_passes_without_joining_or_offloads() {
    for segmentation in [true, false] {
        let ends = Ends::new(segmentation, false);
        transfer(&ends, "10.9.0.2");
        let Carried { reads, written } = ends.carrier.stop();
        assert_eq!(written.packets, written.writes);
        assert_eq!(
            reads < written.packets,
            segmentation,
            "{reads} reads, {written:?}"
        );
    }
}

#[test]
fn runs_of_datagrams_go_through_whole() {
    let ends = Ends::new(true, true);
    let to = SocketAddr::new(IpAddr::from([10, 9, 0, 2]), PORT);
    let receiver = ends.b.run(|| UdpSocket::bind(to).unwrap()).unwrap();
    let limit = Some(Duration::from_secs(30));
    receiver.set_read_timeout(limit).unwrap();
    let sizes = BufferSizes {
        receive: 1 << 20,
        send: 1 << 20,
    };
    let sender = ends.a.run(|| connect(to, sizes).unwrap()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let options = Options {
        mtu_discovery: MtuDiscovery::Probe,
        offloads: udp::Offloads::default(),
    };
    runtime.block_on(async {
        let (sender, mut outbox) = (Datagrams::new(sender, options).unwrap(), Outbox::default());
        for byte in 0..40 {
            outbox.push(&sender, None, None, (&[byte], &[byte; 999]));
        }
        outbox.flush(&sender);
        assert_eq!(outbox.take_tally().sent, 40);
    });
    let mut buffer = [0; 2000];
    for byte in 0..40 {
        let len = receiver.recv(&mut buffer).unwrap();
        assert_eq!(buffer[..len], [byte; 1000]);
    }
    let Carried { reads, written } = ends.carrier.stop();
    assert_eq!(written.join_refused, 0, "{reads} reads, {written:?}");
}

#[test]
fn device_in_use_is_reported_busy() {
    let namespace = Namespace::new("busy").unwrap();
    let outcome = namespace.run(|| {
        let first = open(true).unwrap();
        let second = open(true).unwrap_err();
        drop(first);
        (second, open(true))
    });
    let (second, third) = outcome.unwrap();
    assert!(second.to_string().contains("in use"), "{second}");
    third.expect("the device is free once its handle is dropped");
}

#[test]
fn deleted_device_is_gone() {
    let namespace = Namespace::new("gone").unwrap();
    let device = namespace.run(|| open(true).unwrap()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let port = Port::new(device).unwrap();
        assert!(!port.is_gone());
        namespace.ip(&["link", "set", DEVICE, "up"]).unwrap();
        namespace.ip(&["link", "set", DEVICE, "down"]).unwrap();
        assert!(!port.is_gone());
        namespace.ip(&["link", "del", DEVICE]).unwrap();
        assert!(port.is_gone());
    });
}

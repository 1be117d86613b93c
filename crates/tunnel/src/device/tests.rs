//! What is read from a device and what is written, against the other end of a pair.

use tunnel_proto::ip::segment::Segments;
use tunnel_proto::ip::vnet::Gso;

use super::*;

pub(crate) const ALL: Abilities = Abilities {
    vnet: true,
    join_tcp: true,
    join_udp: true,
};

/// An IPv4 super-packet with `data` bytes behind its headers, checksum left to the receiver.
fn super_packet(gso: Gso, data: usize) -> (VnetHeader, Vec<u8>) {
    let (protocol, header, csum_offset) = match gso {
        Gso::Udp => (17, 8, 6),
        Gso::TcpV4 | Gso::TcpV6 | Gso::None => (6, 20, 16),
    };
    let len = u16::try_from(20 + header + data).unwrap();
    let mut packet = vec![0x45, 0];
    packet.extend(len.to_be_bytes());
    packet.extend([0, 1, 0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    packet.extend([0x30, 0x39, 0x00, 0x50]); // ports
    if protocol == 6 {
        // sequence, acknowledgment, length, ACK, window, checksum, urgent
        packet.extend([0, 0, 1, 0, 0, 0, 2, 0, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
    } else {
        packet.extend((len - 20).to_be_bytes());
        packet.extend([0, 0]);
    }
    packet.extend((0..data).map(|at| u8::try_from(at % 251).unwrap()));
    let vnet = VnetHeader {
        needs_csum: true,
        gso,
        hdr_len: u16::try_from(20 + header).unwrap(),
        gso_size: 1000,
        csum_start: 20,
        csum_offset,
    };
    (vnet, packet)
}

/// The packets that a super-packet stands for.
fn cut(vnet: &VnetHeader, packet: &mut [u8]) -> Vec<Vec<u8>> {
    let (mut segments, mut packets) = (Segments::new(vnet, packet).unwrap(), Vec::new());
    while let Some(packet) = segments.next() {
        packets.push(packet.to_vec());
    }
    packets
}

fn packets(gso: Gso, data: usize) -> Vec<Vec<u8>> {
    let (vnet, mut packet) = super_packet(gso, data);
    cut(&vnet, &mut packet)
}

fn put(batch: &mut Batch, packets: &[Vec<u8>]) {
    for packet in packets {
        batch.slot(packet.len()).unwrap().copy_from_slice(packet);
        batch.commit(packet.len());
    }
}

/// Waits for the next packet of a device.
async fn read<'a>(port: &mut Port, buffer: &'a mut [u8]) -> Packet<'a> {
    let ready = std::future::poll_fn(|cx| port.poll_readable(cx));
    ready.await.unwrap();
    port.read(buffer).unwrap().expect("a packet")
}

/// Flushes to a writer that answers `answer`; the calls that it took.
fn flushed(
    batch: &mut Batch,
    mut answer: impl FnMut(&[IoSlice<'_>]) -> io::Result<()>,
) -> Vec<Vec<u8>> {
    let mut calls = Vec::new();
    batch.flush_by(|parts| {
        answer(parts).inspect(|()| {
            let bytes = parts.iter().flat_map(|part| part.iter().copied());
            calls.push(bytes.collect());
        })
    });
    calls
}

fn plain(packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let with = |packet: &Vec<u8>| [&[0; vnet::LEN][..], packet].concat();
    packets.iter().map(with).collect()
}

#[tokio::test]
async fn super_packet_crosses_devices_whole() {
    let (ours, theirs) = Device::pair(ALL).unwrap();
    let (mut ours, mut theirs) = (Port::new(ours).unwrap(), Port::new(theirs).unwrap());
    let (mut batch, mut buffer) = (Batch::new(ALL), vec![0; READ_BUFFER]);
    for gso in [Gso::TcpV4, Gso::Udp] {
        let (vnet, packet) = super_packet(gso, 9_500);
        let front = vnet.encode();
        let parts = [&front[..], &packet].map(IoSlice::new);
        theirs.write(&parts).unwrap();
        let arrived = read(&mut ours, &mut buffer).await;
        assert_eq!(arrived.vnet, vnet);
        put(&mut batch, &cut(&vnet, arrived.bytes));
        assert!(ours.read(&mut buffer).unwrap().is_none());
        batch.flush(&ours);
        let written = batch.take_written();
        assert_eq!((written.packets, written.writes), (10, 1), "{gso:?}");
        let back = read(&mut theirs, &mut buffer).await;
        assert_eq!(back.vnet, vnet);
        assert_eq!(cut(&vnet, back.bytes), packets(gso, 9_500));
    }
}

#[test]
fn batch_writes_singly_after_refused_join() {
    let mut batch = Batch::new(ALL);
    let refuse = |parts: &[IoSlice<'_>]| match parts.len() {
        2 => Ok(()),
        _ => Err(Errno::INVAL.into()),
    };
    for round in 0..2 {
        let packets = packets(Gso::TcpV4, 5_400);
        put(&mut batch, &packets);
        let calls = flushed(&mut batch, refuse);
        assert_eq!(calls, plain(&packets), "round {round}");
        let written = batch.take_written();
        assert_eq!((written.packets, written.writes), (6, 6));
        assert_eq!(written.join_refused, u64::from(round == 0));
    }
    assert!(!batch.abilities().join_tcp && !batch.abilities().join_udp);
}

#[test]
fn batch_joins_tcp_after_refused_udp_join() {
    let mut batch = Batch::new(ALL);
    let refuse_datagrams = |parts: &[IoSlice<'_>]| match (parts.len(), parts[0][1]) {
        (3.., 5) => Err(Errno::INVAL.into()),
        _ => Ok(()),
    };
    let datagrams = packets(Gso::Udp, 3_000);
    put(&mut batch, &datagrams);
    put(&mut batch, &packets(Gso::TcpV4, 3_000));
    let calls = flushed(&mut batch, refuse_datagrams);
    assert_eq!(calls[..3], plain(&datagrams));
    assert_eq!(calls.len(), 4);
    assert!(batch.abilities().join_tcp && !batch.abilities().join_udp);
}

#[test]
fn device_without_vnet_gets_single_packets() {
    let mut batch = Batch::new(Abilities {
        vnet: false,
        join_tcp: false,
        join_udp: false,
    });
    let packets = packets(Gso::TcpV4, 5_000);
    put(&mut batch, &packets);
    assert_eq!(flushed(&mut batch, |_| Ok(())), packets);
}

#[test]
fn batch_counts_packets_device_refuses() {
    let mut batch = Batch::new(ALL);
    put(&mut batch, &packets(Gso::TcpV4, 4_000));
    assert!(flushed(&mut batch, |_| Err(Errno::AGAIN.into())).is_empty());
    put(&mut batch, &packets(Gso::TcpV4, 10));
    assert!(flushed(&mut batch, |_| Err(Errno::IO.into())).is_empty());
    let written = batch.take_written();
    let counts = (written.blocked, written.failed, written.packets);
    assert_eq!(counts, (4, 1, 0));
    assert!(batch.is_empty() && flushed(&mut batch, |_| Ok(())).is_empty());
}

#[test]
fn batch_is_bounded_and_writes_many_parts() {
    let mut batch = Batch::new(ALL);
    let packets: Vec<_> = (0..3).flat_map(|_| packets(Gso::Udp, 1_000)).collect();
    let mut count = 0;
    while let Some(room) = batch.slot(packets[0].len()) {
        room.copy_from_slice(&packets[0]);
        batch.commit(packets[0].len());
        count += 1;
    }
    assert_eq!(batch.len(), count);
    let (mut parts, mut bytes) = (0, 0);
    batch.flush_by(|call| {
        parts = call.len().max(parts);
        bytes += call.iter().skip(1).map(|part| part.len()).sum::<usize>();
        Ok(())
    });
    assert_eq!(batch.take_written().packets, count as u64);
    assert!(parts <= 1024 && bytes > 0);
    batch.shrink();
    assert!(batch.slot(1).is_some() && batch.slot(2 << 20).is_none());
}

#[test]
fn device_errors_name_their_cause() {
    for (errno, text) in [
        (Errno::BUSY, "in use by another process"),
        (Errno::NOENT, "there is no /dev/net/tun"),
        (Errno::PERM, "needs the capability NET_ADMIN"),
        (Errno::ACCESS, "needs the capability NET_ADMIN"),
        (Errno::INVAL, "cannot be opened"),
    ] {
        let error = DeviceError::of("rhizome0", errno.into());
        assert!(error.to_string().contains(text), "{error}");
    }
}

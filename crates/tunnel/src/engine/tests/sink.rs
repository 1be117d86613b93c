//! Collects what an engine puts out by one call; datagrams of streams as frames.

use bytes::BytesMut;
use tunnel_proto::frame::put_control;

use super::super::*;

#[derive(Default)]
pub(super) struct Sink {
    pub(super) datagrams: Vec<(Remote, Vec<u8>)>,
    pub(super) packets: Vec<Vec<u8>>,
}

impl Out for Sink {
    fn datagram(
        &mut self,
        to: &Remote,
        _band: Band,
        max: usize,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) {
        let mut buf = vec![0; max];
        let len = fill(&mut buf);
        buf.truncate(len);
        if len == 0 {
            return;
        }
        if let Remote::Stream(_) = to {
            let mut frame = u16::try_from(len).unwrap().to_be_bytes().to_vec();
            frame.append(&mut buf);
            buf = frame;
        }
        self.datagrams.push((*to, buf));
    }

    fn control(&mut self, stream: StreamId, control: &Control<'_>) {
        let mut frame = BytesMut::new();
        put_control(control, &mut frame).unwrap();
        self.datagrams
            .push((Remote::Stream(stream), frame.to_vec()));
    }

    fn packet(&mut self, max: usize, fill: impl FnOnce(&mut [u8]) -> usize) {
        let mut buf = vec![0; max];
        let len = fill(&mut buf);
        buf.truncate(len);
        if len > 0 {
            self.packets.push(buf);
        }
    }
}

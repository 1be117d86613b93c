//! What strangers send, and what a foreign server says.

use super::*;

impl Simulation {
    /// Opens a stream to the server that says nothing.
    pub(in crate::engine::tests) fn stranger(&mut self) -> StreamId {
        let (now, from) = (self.now, "203.0.113.9:4000".parse().unwrap());
        self.last_wire += 1;
        let id = StreamId(self.last_wire);
        self.call(Node::Server(0), |engine, out| {
            engine.handle_accepted(now, id, from, out);
        });
        id
    }

    /// Has a client's stream say hello for a server process of this number.
    pub(in crate::engine::tests) fn hello_to_client(&mut self, at: usize, instance: u64) {
        let now = self.now;
        let links = &self.clients[at].engine.status(now).peers[0].links;
        let stream = links[0].remote.trim_start_matches("stream ");
        let stream = StreamId(stream.parse().unwrap());
        let hello = Control::Hello {
            version: 1,
            instance,
            identity: tunnel_proto::frame::Identity::new("server").unwrap(),
        };
        self.call(Node::Client(at), |engine, out| {
            engine.handle_control(now, stream, &hello, out);
        });
    }

    /// Hands bytes to both ends, as datagrams and as frames of a stream.
    pub(in crate::engine::tests) fn junk(&mut self, bytes: Vec<u8>) {
        let now = self.now;
        let stranger = Remote::Udp {
            socket: SocketId(0),
            to: Some("203.0.113.9:4000".parse().unwrap()),
            local: None,
        };
        for node in [Node::Client(0), Node::Server(0)] {
            let mut bytes = bytes.clone();
            self.call(node, |engine, out| {
                engine.handle_datagram(now, &stranger, &mut bytes, out);
            });
            self.call(node, |engine, out| {
                engine.handle_frame(now, &Remote::Stream(StreamId(1)), &bytes, out);
            });
            self.call(node, |engine, out| {
                engine.handle_packet(now, &VnetHeader::default(), &mut bytes, out);
            });
        }
    }
}

//! Nodes that get other keys, or end abruptly and are started again.

use super::*;

impl Simulation {
    /// Gives the server the client's public keys, and the client its private ones.
    pub(in crate::engine::tests) fn rotate_client_key(
        &mut self,
        public: &[&PrivateKey],
        private: &[&PrivateKey],
    ) {
        let now = self.now;
        let mut identity = self.server_identity(0);
        identity.peers[0].public_keys = public.iter().map(|key| key.public()).collect();
        self.servers[0].engine.replace(now, identity).unwrap();
        let identity = Identity {
            keys: private.iter().map(|key| (*key).clone()).collect(),
            peers: vec![self.server_spec(0)],
        };
        self.clients[0].engine.replace(now, identity).unwrap();
    }

    /// Gives the server other keys, its own and its clients'.
    pub(in crate::engine::tests) fn server_keys(&mut self, own: &[u8], clients: &[&[u8]]) {
        let (now, mut identity) = (self.now, self.server_identity(0));
        identity.keys = own.iter().map(|number| key(*number)).collect();
        for (peer, keys) in identity.peers.iter_mut().zip(clients) {
            peer.public_keys = keys.iter().map(|number| key(*number).public()).collect();
        }
        self.servers[0].engine.replace(now, identity).unwrap();
    }

    /// Gives a client other keys, its own and its server's.
    pub(in crate::engine::tests) fn client_keys(&mut self, at: usize, own: &[u8], server: &[u8]) {
        let now = self.now;
        let mut spec = self.server_spec(0);
        spec.public_keys = server.iter().map(|number| key(*number).public()).collect();
        let identity = Identity {
            keys: own.iter().map(|number| key(*number)).collect(),
            peers: vec![spec],
        };
        self.clients[at].engine.replace(now, identity).unwrap();
    }

    pub(in crate::engine::tests) fn restart_server(&mut self, at: usize) {
        self.order += 1;
        let engine = self.server(at, self.clients.len());
        self.servers[at] = End::new(engine);
        for (id, wire) in self.take_streams(|wire| wire.server == at) {
            let now = self.now;
            self.call(Node::Client(wire.client), |engine, out| {
                engine.handle_closed(now, id, out);
            });
        }
    }

    /// Restarts a client. Its UDP sockets get other ports.
    pub(in crate::engine::tests) fn restart_client(&mut self, at: usize) {
        self.kill_client(at);
        let engine = self.client(at, self.servers.len());
        self.clients[at] = End::new(engine);
    }

    /// Ends a client that says nothing of it; the kernel closes its streams.
    pub(in crate::engine::tests) fn kill_client(&mut self, at: usize) {
        self.clients[at].dead = true;
        let streams = self.take_streams(|wire| wire.client == at);
        self.wires.retain(|(.., wire)| wire.client != at);
        for (id, wire) in streams {
            let now = self.now;
            self.call(Node::Server(wire.server), |engine, out| {
                engine.handle_closed(now, id, out);
            });
        }
    }

    /// Sends the first server a copy of the first initiation, from elsewhere.
    pub(in crate::engine::tests) fn replay_initiation(&mut self) {
        let (now, initiation) = (self.now, self.first_initiation.clone().unwrap());
        let remote = Remote::Udp {
            socket: SocketId(0),
            to: Some("203.0.113.9:4000".parse().unwrap()),
            local: None,
        };
        self.call(Node::Server(0), |engine, out| {
            engine.handle_frame(now, &remote, &initiation, out);
        });
    }

    /// Removes the streams of an end, and returns them.
    fn take_streams(&mut self, is_of: impl Fn(&Wire) -> bool) -> Vec<(StreamId, Wire)> {
        let ended = |(_, tcp, wire): &mut (u64, bool, Wire)| *tcp && is_of(wire);
        let ended = self.wires.extract_if(.., ended);
        ended.map(|(id, _, wire)| (StreamId(id), wire)).collect()
    }
}

//! Ends whose process ends without a word and is started again.

use super::*;

impl World {
    pub(in crate::engine::tests) fn restart_server(&mut self, at: usize) {
        self.order += 1;
        let engine = self.server(at, self.clients.len());
        self.servers[at] = End::new(engine);
        for (id, wire) in self.take_streams(|wire| wire.server == at) {
            let now = self.now;
            self.call(Who::Client(wire.client), |engine, out| {
                engine.handle_closed(now, id, out);
            });
        }
    }

    /// Restarts a client with a clock that is behind by so much. Its UDP sockets get other ports.
    pub(in crate::engine::tests) fn restart_client(&mut self, at: usize, clock_behind: Duration) {
        let engine = self.client(at, self.servers.len(), clock_behind);
        self.clients[at] = End::new(engine);
        let streams = self.take_streams(|wire| wire.client == at);
        self.wires.retain(|(.., wire)| wire.client != at);
        for (id, wire) in streams {
            let now = self.now;
            self.call(Who::Server(wire.server), |engine, out| {
                engine.handle_closed(now, id, out);
            });
        }
    }

    /// Removes the streams of an end, and returns them.
    fn take_streams(&mut self, is_of: impl Fn(&Wire) -> bool) -> Vec<(StreamId, Wire)> {
        let ended = |(_, tcp, wire): &mut (u64, bool, Wire)| *tcp && is_of(wire);
        let ended = self.wires.extract_if(.., ended);
        ended.map(|(id, _, wire)| (StreamId(id), wire)).collect()
    }
}

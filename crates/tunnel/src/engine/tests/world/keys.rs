//! Ends that get other keys.

use super::*;

impl World {
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
}

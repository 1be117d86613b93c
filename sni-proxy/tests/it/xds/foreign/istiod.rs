//! A control plane as istiod is: gRPC by h2, requests and responses by hand.
//!
//! ```text
//!   test ── set, remove ─▶ World ── what differs, CDS, EDS, LDS, RDS ─▶ gateway
//!                            ▲ asked, ACKs, NACKs ───────────────────────────┘
//! ```
//!
//! Resources have no versions, and a type that it does not know has none, as istiod has it. It leaves
//! out authentication, debouncing, and everything that istiod derives from the gateway's name.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use bytes::{Bytes, BytesMut};
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::{Request, Response};
use telemetry::lock;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};

use super::wire::{Message, any, fields, new};

const SERVICE: &str = "/envoy.service.discovery.v3.AggregatedDiscoveryService";

/// A running control plane. Dropping it closes its port and all streams.
pub(super) struct Istiod {
    pub(super) addr: SocketAddr,
    world: Arc<World>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Resources by type and name.
type Resources = BTreeMap<&'static str, BTreeMap<String, Message>>;

struct World {
    /// Whether it knows the incremental variant.
    delta: bool,
    resources: watch::Sender<Resources>,
    seen: Mutex<Seen>,
}

/// What gateways have said.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    /// Ids of their nodes.
    pub(super) nodes: BTreeSet<String>,
    /// Types that were asked for, and those of which something was accepted.
    pub(super) asked: BTreeSet<String>,
    pub(super) acked: BTreeSet<String>,
    /// Why something was refused.
    pub(super) nacks: Vec<String>,
}

impl Istiod {
    pub(super) fn start(delta: bool) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let addr = listener.local_addr().unwrap();
        let world = Arc::new(World {
            delta,
            resources: watch::Sender::default(),
            seen: Mutex::default(),
        });
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = Arc::clone(&world);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = { runtime }.enable_all().build().unwrap();
            runtime.block_on(async move {
                let listener = TcpListener::from_std(listener).unwrap();
                let accepting = async {
                    loop {
                        let (tcp, _) = listener.accept().await.unwrap();
                        tokio::spawn(connection(tcp, Arc::clone(&serving)));
                    }
                };
                tokio::select! {
                    () = accepting => {}
                    _ = stopped => {}
                }
            });
        });
        Self {
            addr,
            world,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// Changes resources, all at once; streams are sent what differs.
    pub(super) fn change(&self, change: impl FnOnce(&mut Resources)) {
        self.world.resources.send_modify(change);
    }

    pub(super) fn seen(&self) -> Seen {
        lock(&self.world.seen).clone()
    }
}

impl Drop for Istiod {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            assert!(thread.join().is_ok() || std::thread::panicking());
        }
    }
}

async fn connection(tcp: TcpStream, world: Arc<World>) {
    let Ok(mut connection) = h2::server::handshake(tcp).await else {
        return;
    };
    while let Some(Ok((request, respond))) = connection.accept().await {
        tokio::spawn(stream(request, respond, Arc::clone(&world)));
    }
}

async fn stream(request: Request<RecvStream>, mut respond: SendResponse<Bytes>, world: Arc<World>) {
    let delta = match request.uri().path().strip_prefix(SERVICE) {
        Some("/DeltaAggregatedResources") => true,
        Some("/StreamAggregatedResources") => false,
        other => panic!("{other:?} is no method"),
    };
    let response = Response::builder().header("content-type", "application/grpc");
    if delta && !world.delta {
        // UNIMPLEMENTED.
        let response = response.header("grpc-status", "12").body(()).unwrap();
        respond.send_response(response, true).unwrap();
        return;
    }
    let send = respond.send_response(response.body(()).unwrap(), false);
    let stream = Stream {
        resources: world.resources.subscribe(),
        world,
        delta,
        send: send.unwrap(),
        asked: BTreeMap::new(),
        responses: 0,
    };
    stream.serve(request.into_body()).await;
}

struct Stream {
    world: Arc<World>,
    resources: watch::Receiver<Resources>,
    delta: bool,
    send: SendStream<Bytes>,
    /// What was asked for, by type.
    asked: BTreeMap<String, Asked>,
    responses: u64,
}

#[derive(Default)]
struct Asked {
    /// Without any, all are meant.
    names: BTreeSet<String>,
    sent: BTreeMap<String, Message>,
}

impl Stream {
    async fn serve(mut self, mut body: RecvStream) {
        let mut read = BytesMut::new();
        loop {
            tokio::select! {
                data = body.data() => {
                    let Some(Ok(data)) = data else { return };
                    let _ = body.flow_control().release_capacity(data.len());
                    read.extend_from_slice(&data);
                    while let Some(message) = message(&mut read) {
                        self.request(&message);
                    }
                }
                changed = self.resources.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    for kind in ["cluster.v3.Cluster", "LoadAssignment", "Listener", "Route"] {
                        let asked = self.asked.keys();
                        let found = asked.filter(|url| url.contains(kind)).cloned();
                        for url in found.collect::<Vec<_>>() {
                            self.respond(&url, false);
                        }
                    }
                }
            }
        }
    }

    fn request(&mut self, message: &[u8]) {
        let all = fields(message);
        let texts = |number: u64| -> BTreeSet<String> {
            let values = all.iter().filter(|(field, _)| *field == number);
            values
                .map(|(_, value)| String::from_utf8(value.to_vec()).unwrap())
                .collect()
        };
        let [node, kind, subscribed, nonce, error] = match self.delta {
            true => [1, 2, 3, 6, 7],
            false => [2, 4, 3, 5, 6],
        };
        let url = texts(kind).pop_first().unwrap();
        let mut seen = lock(&self.world.seen);
        for (_, node) in all.iter().filter(|(field, _)| *field == node) {
            let id = fields(node).into_iter().find(|(field, _)| *field == 1);
            seen.nodes
                .insert(String::from_utf8(id.unwrap().1.to_vec()).unwrap());
        }
        seen.asked.insert(url.clone());
        let refused = all.iter().find(|(field, _)| *field == error);
        if let Some((_, status)) = refused {
            let text = fields(status).into_iter().find(|(field, _)| *field == 2);
            seen.nacks
                .push(String::from_utf8(text.unwrap().1.to_vec()).unwrap());
        } else if !texts(nonce).is_empty() {
            seen.acked.insert(url.clone());
        }
        drop(seen);
        let first = !self.asked.contains_key(&url);
        let asked = self.asked.entry(url.clone()).or_default();
        let mut names = texts(subscribed);
        if self.delta {
            // A name that is given up is in field 4.
            let given_up = texts(4);
            names.extend(asked.names.difference(&given_up).cloned());
        }
        let changed = names != asked.names;
        asked.names = names;
        if first || changed {
            self.respond(&url, true);
        }
    }

    /// Sends what differs from what was sent before; if nothing does, only when `asked` for.
    fn respond(&mut self, url: &str, asked_for: bool) {
        let all = self.resources.borrow_and_update().clone();
        let kind = url.strip_prefix("type.googleapis.com/").unwrap();
        let asked = self.asked.get_mut(url).unwrap();
        let mut wanted = all.get(kind).cloned().unwrap_or_default();
        wanted.retain(|name, _| asked.names.is_empty() || asked.names.contains(name));
        if wanted == asked.sent && !asked_for {
            return;
        }
        let sent = std::mem::replace(&mut asked.sent, wanted);
        self.responses += 1;
        let nonce = format!("nonce-{}", self.responses);
        let identifier = new().text(1, "{\"Component\":\"istiod\"}");
        let pack = |message: &Message| any(kind, message.clone());
        let now = &asked.sent;
        let response = if self.delta {
            let changed = now
                .iter()
                .filter(|(name, body)| sent.get(*name) != Some(*body));
            let named = changed.map(|(name, body)| new().message(2, pack(body)).text(3, name));
            let gone = sent.keys().filter(|name| !now.contains_key(*name));
            let response = new().each(2, named).text(4, url).text(5, &nonce);
            gone.fold(response, |all, name| all.text(6, name))
                .message(7, identifier)
        } else {
            new()
                .text(1, &format!("version-{}", self.responses))
                .each(2, now.values().map(pack))
                .text(4, url)
                .text(5, &nonce)
                .message(6, identifier)
        };
        let len = u32::try_from(response.bytes().len()).unwrap();
        let frame = [&[0][..], &len.to_be_bytes(), response.bytes()].concat();
        // The gateway may be gone.
        let _ = self.send.send_data(frame.into(), false);
    }
}

/// Takes a message of gRPC from what was read, once it is whole.
fn message(read: &mut BytesMut) -> Option<Bytes> {
    let len = u32::from_be_bytes(read.get(1..5)?.try_into().ok()?);
    let len = usize::try_from(len).ok()? + 5;
    (read.len() >= len).then(|| read.split_to(len).freeze().slice(5..))
}

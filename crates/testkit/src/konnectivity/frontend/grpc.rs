//! The frontend that asks by gRPC over a Unix socket: one stream for each dial.
#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "any packet but the one awaited is an error"
)]

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use h2::client::SendRequest;
use tokio::net::UnixStream;

use super::{Reading, Refusal, Tunnel, TunnelReader, TunnelWriter, Writing};
use crate::background::locked;
use crate::konnectivity::engine::Engine;
use crate::konnectivity::packet::Packet;
use crate::konnectivity::stream::{self, Outgoing};
use crate::konnectivity::tap::Control;
use crate::konnectivity::wire::{LIMIT, Wire};

/// A kube-apiserver with `proxyProtocol: GRPC`.
#[derive(Debug)]
pub struct GrpcFrontend {
    path: PathBuf,
    engine: Engine,
    shared: Option<Mutex<Option<Shared>>>,
    dials: AtomicU64,
}

type Shared = (SendRequest<Bytes>, Arc<Control>);

impl GrpcFrontend {
    /// Returns a frontend with a connection for each dial, as kube-apiserver has it.
    pub fn uds(path: &Path) -> Result<Self> {
        Ok(Self {
            path: path.to_owned(),
            engine: Engine::start("frontend")?,
            shared: None,
            dials: AtomicU64::new(0),
        })
    }

    /// Returns a frontend with one connection for all dials, as newer client libraries have it.
    pub fn sharing(path: &Path) -> Result<Self> {
        Ok(Self {
            shared: Some(Mutex::default()),
            ..Self::uds(path)?
        })
    }

    /// Opens a stream and says nothing on it.
    pub fn open(&self) -> Result<Wire> {
        let (requests, control) = match &self.shared {
            None => self.dial()?,
            Some(shared) => {
                let mut shared = locked(shared);
                match &*shared {
                    Some(shared) => shared.clone(),
                    None => shared.insert(self.dial()?).clone(),
                }
            }
        };
        let ready = self.engine.wait(LIMIT, requests.ready());
        let mut requests = ready.context("no stream for 20 s")??;
        let request = stream::request("http://localhost/ProxyService/Proxy", &[])?;
        let (response, outgoing) = requests.send_request(request, false)?;
        let outgoing = Outgoing(outgoing);
        Ok(Wire::client(&self.engine, control, outgoing, response))
    }

    /// Dials `target`.
    ///
    /// Fails when the server is not there, or does not answer within 30 s: then the dial is taken back as
    /// upstream's library takes it back.
    pub fn connect(&self, target: &str) -> Result<Result<Tunnel, Refusal>> {
        let mut wire = self.open()?;
        let random = self.random();
        let address = target.to_owned();
        wire.send(&Packet::DialReq { address, random })?;
        let answer = match wire.recv(BACKSTOP) {
            Ok(answer) => answer,
            Err(error) => {
                let _ = wire.send(&Packet::DialCls { random });
                return Err(error);
            }
        };
        match answer {
            Packet::DialRsp {
                error,
                connect_id,
                random: found,
            } if found == random => {
                if error.is_empty() {
                    return Ok(Ok(tunnel(wire, connect_id)));
                }
                Ok(Err(Refusal {
                    status: 0,
                    head: String::new(),
                    body: error,
                }))
            }
            other => bail!("{other:?} as the answer to dial {random}"),
        }
    }

    /// Returns the number for a dial: 63 bits that look random and are the same in each run.
    pub fn random(&self) -> i64 {
        let dial = self.dials.fetch_add(1, Ordering::SeqCst) + 1;
        // The odd constant of splitmix64.
        (dial.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 1).cast_signed()
    }

    fn dial(&self) -> Result<Shared> {
        let connect = async {
            let socket = UnixStream::connect(&self.path).await;
            let socket = socket.with_context(|| format!("connecting to {:?}", self.path))?;
            let (requests, _, control) = stream::connect(socket, Control::default()).await?;
            Ok((requests, control))
        };
        let connected = self.engine.wait(LIMIT, connect);
        connected.context("the server does not answer")?
    }
}

/// Makes a tunnel of a stream whose dial was answered with `connect_id`.
fn tunnel(wire: Wire, connect_id: i64) -> Tunnel {
    let (sender, receiver) = wire.split();
    Tunnel {
        reader: TunnelReader(Reading::Grpc {
            receiver: Box::new(receiver),
            pending: std::io::Cursor::default(),
            connect_id,
            end: None,
        }),
        writer: TunnelWriter(Writing::Grpc { sender, connect_id }),
    }
}

/// What upstream's library waits for an answer at most.
const BACKSTOP: Duration = Duration::from_secs(30);

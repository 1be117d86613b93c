//! Flags of `rhizome-bench konnectivity`.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use rustls::pki_types::ServerName;
use testkit::certs::IdentityFiles;

use super::credentials::client_config;
use super::frontend::{Frontend, Transport};
use super::load::Load;
use super::pair::Programs;
use super::scenario::harm::Stalled;
use crate::cpus::{Bound, Cpus};
use crate::programs::program;

/// Load through a konnectivity server and its agent, which are started for it.
#[derive(Args, Debug)]
pub(crate) struct Konnectivity {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    pub(crate) what: What,
}

/// What is measured, and how much of it.
#[derive(Clone, Copy, Debug, Subcommand)]
pub(crate) enum What {
    /// Gives up dials while the agent is frozen, and looks at what is left.
    Abandon {
        /// How many dials.
        #[arg(long, default_value_t = 20)]
        count: usize,
    },
    /// Dials, exchanges eight bytes and closes, as often as possible.
    Dials(Pace),
    /// Bytes from the destination.
    Down(Bulk),
    /// Memory of idle tunnels.
    Idle {
        /// How many tunnels.
        #[arg(long, default_value_t = 1000)]
        count: usize,
    },
    /// Round trips of 64 bytes.
    Rtt(Pace),
    /// Very many dials; then descriptors, tunnels and memory must be as before.
    Soak {
        /// How many dials.
        #[arg(long, default_value_t = 10_000)]
        count: usize,
    },
    /// Others' round trips and dials while some tunnels are not read from.
    Stall {
        /// Who does not read.
        #[arg(long, value_enum, default_value_t = Stalled::Reader)]
        who: Stalled,
        /// How many tunnels.
        #[arg(long, default_value_t = 1)]
        count: usize,
        /// For how long.
        #[arg(long, default_value_t = 10)]
        seconds: u64,
    },
    /// Everything a pair is held to, through three transports, in about three minutes.
    Suite {
        /// MiB of a transfer.
        #[arg(long, default_value_t = 1024)]
        mib: u64,
        /// Milliseconds of one run of round trips or dials.
        #[arg(long, default_value_t = 1000)]
        millis: u64,
    },
    /// Bytes to the destination.
    Up(Bulk),
}

/// How many bytes, on how many streams.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Bulk {
    /// MiB on each stream.
    #[arg(long, default_value_t = 1024)]
    pub(crate) mib: u64,
    /// Streams at once, each its own tunnel.
    #[arg(long, default_value_t = 1)]
    pub(crate) streams: usize,
}

/// How many connections, how fast, how long.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// Connections at once.
    #[arg(short, long, default_value_t = 1)]
    pub(crate) connections: usize,
    /// Seconds that count.
    #[arg(long, default_value_t = 5.0)]
    pub(crate) seconds: f64,
    /// Seconds before that.
    #[arg(long, default_value_t = 0.5)]
    pub(crate) warm_up: f64,
    /// Operations a second, all connections together; without it, as fast as answers come. With
    /// it, an operation that had to wait counts from when it was due.
    #[arg(long)]
    pub(crate) rate: Option<f64>,
}

impl Pace {
    /// Returns the load.
    ///
    /// # Errors
    /// When a number is none that a duration can have.
    pub(crate) fn load(&self) -> Result<Load> {
        let seconds = |seconds| Duration::try_from_secs_f64(seconds).context("seconds");
        let interval = self
            .rate
            .map(|rate| seconds(self.connections as f64 / rate))
            .transpose()?;
        Ok(Load {
            connections: self.connections,
            warm_up: seconds(self.warm_up)?,
            length: seconds(self.seconds)?,
            interval,
        })
    }
}

/// What goes for all of them.
#[derive(Args, Debug)]
pub(crate) struct Common {
    /// The server's program; by default the one beside this program.
    #[arg(long, global = true)]
    server: Option<PathBuf>,
    /// The agent's program; by default the one beside this program.
    #[arg(long, global = true)]
    agent: Option<PathBuf>,
    /// More flags for the server, separated by blanks.
    #[arg(long, global = true, default_value = "", allow_hyphen_values = true)]
    server_args: String,
    /// More flags for the agent, separated by blanks.
    #[arg(long, global = true, default_value = "", allow_hyphen_values = true)]
    agent_args: String,
    /// Processors to run on, as in `server=0,agent=0,load=1`; several are joined by `+`.
    #[arg(long, global = true)]
    cpus: Option<Cpus>,
    /// Ways to measure.
    #[arg(long, global = true, value_enum, value_delimiter = ',')]
    transport: Vec<Transport>,
    /// A frontend that runs already: `unix:/path` or an address with a port.
    #[arg(long, global = true)]
    frontend: Option<String>,
    /// Name in the running frontend's certificate.
    #[arg(long, global = true, default_value = "localhost")]
    server_name: String,
    /// Authority of the running frontend's certificate.
    #[arg(long, global = true)]
    ca: Option<PathBuf>,
    /// Our certificate for the running frontend.
    #[arg(long, global = true)]
    cert: Option<PathBuf>,
    /// Its key.
    #[arg(long, global = true)]
    key: Option<PathBuf>,
    /// Process id of the running server.
    #[arg(long, global = true)]
    pub(crate) server_pid: Option<u32>,
    /// Process id of the running agent.
    #[arg(long, global = true)]
    pub(crate) agent_pid: Option<u32>,
    /// Address of the running server's metrics.
    #[arg(long, global = true)]
    pub(crate) server_metrics: Option<SocketAddr>,
    /// Address of the running agent's metrics.
    #[arg(long, global = true)]
    pub(crate) agent_metrics: Option<SocketAddr>,
    /// Address of ours that the agent reaches: the destination listens there.
    #[arg(long, global = true, default_value = "127.0.0.1")]
    pub(crate) destination: IpAddr,
    /// Resume TLS sessions, which kube-apiserver does not.
    #[arg(long, global = true)]
    resume: bool,
    /// Repetitions.
    #[arg(long, global = true, default_value_t = 3)]
    pub(crate) rounds: usize,
}

impl Common {
    /// Returns the processors asked for.
    pub(crate) fn cpus(&self) -> Cpus {
        self.cpus.clone().unwrap_or_default()
    }

    /// Returns the ways to measure, `direct` first when `default` is used.
    pub(crate) fn transports(&self, default: &[Transport]) -> Vec<Transport> {
        if self.transport.is_empty() {
            return default.to_vec();
        }
        self.transport.clone()
    }

    /// Returns what to start.
    ///
    /// # Errors
    /// When a program is not where it should be.
    pub(crate) fn programs(&self, cpus: Bound) -> Result<Programs> {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect();
        Ok(Programs {
            agent: program(self.agent.as_ref(), "konnectivity-agent")?,
            agent_args: words(&self.agent_args),
            cpus,
            resume: self.resume,
            server: program(self.server.as_ref(), "konnectivity-server")?,
            server_args: words(&self.server_args),
        })
    }

    /// Returns the running frontend, if one is named.
    ///
    /// # Errors
    /// When its address does not go with `transport`, or certificates are missing.
    pub(crate) fn running(&self, transport: Transport) -> Result<Option<Frontend>> {
        let Some(address) = &self.frontend else {
            return Ok(None);
        };
        let grpc = transport.is_grpc();
        match (address.strip_prefix("unix:"), transport.is_uds()) {
            (Some(path), true) => Ok(Some(Frontend::Uds {
                grpc,
                path: path.into(),
            })),
            (None, false) => {
                let file = |file: &Option<PathBuf>| {
                    file.clone().context("TLS needs --ca, --cert and --key")
                };
                let identity = IdentityFiles {
                    cert: file(&self.cert)?,
                    key: file(&self.key)?,
                };
                Ok(Some(Frontend::Tls {
                    grpc,
                    addr: address.parse().context("reading --frontend")?,
                    name: ServerName::try_from(self.server_name.clone())
                        .context("reading --server-name")?,
                    config: client_config(&file(&self.ca)?, &identity, grpc, self.resume)?,
                }))
            }
            _ => bail!(
                "--frontend {address} is not of --transport {}",
                transport.as_str()
            ),
        }
    }
}

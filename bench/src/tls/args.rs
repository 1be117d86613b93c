//! Flags of `rhizome-bench tls`.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;

use crate::cpus::Cpus;
use crate::limits;
use crate::profile::{Case, Chosen, Listener, Profile, Route};

/// Load through gateways that pass TLS through: ours, and those of others in the same run.
#[derive(Args, Debug)]
pub(crate) struct Tls {
    #[command(flatten)]
    pub(crate) chosen: Chosen,
    /// What connections begin with.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Listener::Sni])]
    pub(crate) listener: Vec<Listener>,
    /// What to measure; by default everything.
    #[arg(long, value_enum, value_delimiter = ',')]
    cases: Vec<Case>,
    /// Connections at once that bytes go through.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8, 64])]
    pub(crate) connections: Vec<usize>,
    /// New connections under way at a time.
    #[arg(long, default_value_t = 32)]
    pub(crate) in_flight: usize,
    /// Idle connections; fewer, if open files are limited to less.
    #[arg(long, default_value_t = 9000)]
    idle: usize,
    /// Names in the table; connections are for the last of them.
    #[arg(long, default_value_t = 1)]
    pub(crate) names: u32,
    /// Repetitions; every other one runs backwards.
    #[arg(long, default_value_t = 3)]
    pub(crate) rounds: usize,
    /// Seconds that count.
    #[arg(long = "seconds", default_value = "3", value_parser = seconds)]
    pub(crate) length: Duration,
    /// Seconds before that.
    #[arg(long, default_value = "0.5", value_parser = seconds)]
    pub(crate) warm_up: Duration,
    /// Processors to run on, as in `proxy=0,load=1`; several are joined by `+`. By default the first
    /// one for the proxy, the second one for everything else.
    #[arg(long)]
    cpus: Option<Cpus>,
    /// Measure a gateway that runs already, beside none: its address. By `--server-name` it routes to
    /// `--backend`.
    #[arg(long, value_name = "ADDRESS", requires_all = ["backend", "server_name"])]
    pub(crate) at: Option<SocketAddr>,
    /// Where the backend of such a gateway listens.
    #[arg(long, value_name = "ADDRESS", requires = "at")]
    backend: Option<SocketAddr>,
    /// The server name that such a gateway routes to it.
    #[arg(long, value_name = "NAME", requires = "at")]
    server_name: Option<String>,
    /// The process of such a gateway, for its CPU time and memory.
    #[arg(long, value_name = "PID", requires = "at")]
    pid: Option<u32>,
    /// Give ClientHellos a key share of 1216 bytes, as post-quantum ones have.
    #[arg(long)]
    pub(crate) post_quantum: bool,
}

impl Tls {
    pub(crate) fn cases(&self) -> Vec<Case> {
        if self.cases.is_empty() {
            return ALL.to_vec();
        }
        self.cases.clone()
    }

    /// Refuses what measures nothing.
    pub(crate) fn check(&self) -> Result<()> {
        let https = self.listener.contains(&Listener::Https);
        ensure!(!https, "TLS that ends in a gateway is measured by `https`");
        ensure!(self.in_flight > 0, "--in-flight 0 connects nothing");
        ensure!(self.names > 0, "--names 0 leads nowhere");
        let none = self.connections.is_empty() || self.connections.contains(&0);
        ensure!(!none, "--connections 0 moves nothing");
        Ok(())
    }

    /// Returns how many idle connections the limit of open files carries.
    pub(crate) fn idle(&self) -> usize {
        self.idle.min(limits::proxied(limits::descriptors()))
    }

    pub(crate) fn profiles(&self) -> Result<Vec<Profile>> {
        let Some(address) = self.at else {
            return self.chosen.profiles(&self.listener);
        };
        let mut all = self.chosen.profiles(&self.listener)?;
        all.retain(Profile::is_direct);
        all.push(Profile::of_running(address, self.pid));
        Ok(all)
    }

    pub(crate) fn backend(&self) -> SocketAddr {
        self.backend
            .unwrap_or_else(|| (Ipv4Addr::LOCALHOST, 0).into())
    }

    pub(crate) fn cpus(&self) -> Result<Cpus> {
        self.cpus.clone().map_or_else(Cpus::apart, Ok)
    }

    /// Returns the table, and the route that connections are for.
    pub(crate) fn routes(&self, backend: SocketAddr) -> (Vec<Route>, Route) {
        let mut asked = Route::numbered(self.names.saturating_sub(1), backend);
        if let Some(name) = &self.server_name {
            asked.name.clone_from(name);
        }
        (Route::table(self.names, backend), asked)
    }
}

pub(crate) fn seconds(text: &str) -> Result<Duration> {
    Ok(Duration::try_from_secs_f64(text.parse()?)?)
}

const ALL: [Case; 4] = [Case::Conns, Case::Bulk, Case::Rtt, Case::Idle];

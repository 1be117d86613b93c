//! Flags of `rhizome-bench https`.

use std::time::Duration;

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};

use crate::cpus::Cpus;
use crate::profile::Chosen;
use crate::tls::seconds;

/// Requests through gateways in which TLS ends: ours, and Envoy in the same run.
#[derive(Args, Debug)]
pub(crate) struct Https {
    #[command(flatten)]
    pub(crate) chosen: Chosen,
    /// What to measure; by default everything.
    #[arg(long, value_enum, value_delimiter = ',')]
    cases: Vec<Case>,
    /// Kept connections of `get` and `get-http1`, one request each at a time.
    #[arg(long, default_value_t = 50)]
    pub(crate) connections: usize,
    /// Handshakes under way at a time.
    #[arg(long, default_value_t = 32)]
    pub(crate) in_flight: usize,
    /// Clients of `list`.
    #[arg(long, default_value_t = 8)]
    pub(crate) lists: usize,
    /// Connections with a watch each.
    #[arg(long, default_value_t = 1000)]
    pub(crate) watches: usize,
    /// Events, one after the other, each to all watches.
    #[arg(long, default_value_t = 20)]
    pub(crate) events: usize,
    /// Clients of `spread`.
    #[arg(long, default_value_t = 200)]
    pub(crate) clients: usize,
    /// Repetitions; every other one runs backwards.
    #[arg(long, default_value_t = 3)]
    pub(crate) rounds: usize,
    /// Seconds that count.
    #[arg(long = "seconds", default_value = "3", value_parser = seconds)]
    pub(crate) length: Duration,
    /// Seconds before that.
    #[arg(long, default_value = "0.5", value_parser = seconds)]
    pub(crate) warm_up: Duration,
    /// Processors to run on, as in `proxy=0,load=1`; by default the first one for the gateway, the second one
    /// for everything else.
    #[arg(long)]
    cpus: Option<Cpus>,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Case {
    /// Small answers over kept connections of HTTP/2.
    Get,
    /// The same by HTTP/1.1.
    GetHttp1,
    /// A connection for each request.
    Handshake,
    /// Large answers.
    List,
    /// Idle watches, and events to all of them.
    Watch,
    /// Requests of each of three servers, after one was away.
    Spread,
}

impl Https {
    pub(crate) fn cases(&self) -> Vec<Case> {
        if self.cases.is_empty() {
            return Case::value_variants().to_vec();
        }
        self.cases.clone()
    }

    /// Refuses what measures nothing.
    pub(crate) fn check(&self) -> Result<()> {
        let counts = [
            self.connections,
            self.in_flight,
            self.lists,
            self.watches,
            self.events,
            self.clients,
        ];
        ensure!(!counts.contains(&0), "a count of 0 measures nothing");
        Ok(())
    }

    pub(crate) fn cpus(&self) -> Result<Cpus> {
        self.cpus.clone().map_or_else(Cpus::apart, Ok)
    }
}

//! Flags of `rhizome-bench tunnel`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum, value_parser};
use serde_json::Value;

use super::ours::Programs;
use super::setup::Setup;
use crate::programs::program;

/// Load through tunnels in network namespaces: ours, and those of others in the same run.
#[derive(Args, Debug)]
pub(crate) struct Tunnel {
    /// Tunnels to measure, in this order; by default all.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Setup>,
    /// What to measure; by default everything.
    #[arg(long, value_enum, value_delimiter = ',')]
    cases: Vec<Case>,
    /// Seconds of one transfer, and of pings through an idle tunnel.
    #[arg(long, default_value_t = 3)]
    seconds: u32,
    /// Seconds of one transfer over the long line.
    #[arg(long, default_value_t = 8)]
    long_seconds: u32,
    /// Mb/s of long lines with a rate, each way.
    #[arg(long, value_delimiter = ',', default_values_t = [4, 20, 100], value_parser = value_parser!(u64).range(1..=10_000))]
    pub(crate) rate: Vec<u64>,
    /// Milliseconds that a packet may wait where a line has a rate.
    #[arg(long, default_value_t = 600)]
    pub(crate) buffer: u64,
    /// What shares a line with a rate: `none`, the congestion control of a plain connection, or
    /// `tunnel`, a second one of ours.
    #[arg(long, value_delimiter = ',', default_values = [ALONE, "bbr"])]
    pub(crate) neighbor: Vec<String>,
    /// Seconds for which the neighbor has sent when the load begins; if negative, the load when the
    /// neighbor begins. They are not counted.
    #[arg(long, default_value_t = 5, allow_negative_numbers = true, value_parser = value_parser!(i32).range(-60..=60))]
    lead: i32,
    /// Repetitions.
    #[arg(long, default_value_t = 3)]
    pub(crate) rounds: usize,
    /// Bytes go from the shoot to the seed; otherwise from the seed to the shoot.
    #[arg(long)]
    pub(crate) reverse: bool,
    /// `vpn-server`; by default the one beside this program, as the next two.
    #[arg(long)]
    server: Option<PathBuf>,
    /// `vpn-client`.
    #[arg(long)]
    client: Option<PathBuf>,
    /// `sni-proxy`.
    #[arg(long)]
    gateway: Option<PathBuf>,
    /// What of both ends' configuration is otherwise: an object in JSON, such as
    /// `{"queue":{"packets":4096}}`.
    #[arg(long, default_value = "{}", value_parser = object)]
    set: Value,
}

/// No neighbor.
pub(super) const ALONE: &str = "none";

/// The same client's tunnel to a second server.
pub(super) const TUNNEL: &str = "tunnel";

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Case {
    /// Start to first ping, pings through the idle tunnel, memory.
    Idle,
    /// One and eight streams, pings meanwhile.
    Bulk,
    /// Start to first ping where UDP is blocked.
    Blocked,
    /// Round trips of 50 ms, and both of the above.
    Long,
    /// The same with one packet of a hundred lost.
    Loss,
    /// The same with a rate and a buffer: four streams, alone and beside a plain connection.
    Rate,
}

impl Tunnel {
    pub(crate) fn setups(&self) -> Vec<Setup> {
        if self.only.is_empty() {
            return Setup::value_variants().to_vec();
        }
        self.only.clone()
    }

    pub(crate) fn has(&self, case: Case) -> bool {
        self.cases.is_empty() || self.cases.contains(&case)
    }

    pub(crate) fn length(&self) -> Duration {
        Duration::from_secs(self.seconds.into())
    }

    pub(crate) fn long_length(&self) -> Duration {
        Duration::from_secs(self.long_seconds.into())
    }

    /// Returns for how long load and neighbor send before the other one begins.
    pub(crate) fn leads(&self) -> [Duration; 2] {
        let lead = Duration::from_secs(self.lead.unsigned_abs().into());
        match self.lead < 0 {
            true => [lead, Duration::ZERO],
            false => [Duration::ZERO, lead],
        }
    }

    pub(crate) fn programs(&self) -> Result<Programs> {
        Ok(Programs {
            server: program(self.server.as_ref(), "vpn-server")?,
            client: program(self.client.as_ref(), "vpn-client")?,
            gateway: program(self.gateway.as_ref(), "sni-proxy")?,
            set: self.set.clone(),
        })
    }
}

/// Reads an object; a text would do for clap as well.
fn object(text: &str) -> Result<Value> {
    let value: Value = serde_json::from_str(text).context("reading JSON")?;
    ensure!(value.is_object(), "no object");
    Ok(value)
}

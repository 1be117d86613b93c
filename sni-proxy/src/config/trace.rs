//! Subcommands of `sni-proxy`, and the flags of `trace`.
//!
//! Checked here as far as they can be without a gateway.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use telemetry::EndpointAddr;

use crate::trace::{Question, Subject, Target, WireGuardServer};

/// What to do instead of serving.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Ask the running process, at its admin address, whether it serves, as a startup probe does.
    Started {
        /// Configuration file (YAML) of that process.
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
    },
    /// Ask a running gateway where a connection would go, and why; it takes no connection and
    /// changes nothing.
    #[command(after_help = EXAMPLES)]
    Trace(Box<TraceFlags>),
}

const EXAMPLES: &str = "\
Examples:
  sni-proxy trace --sni api.a.example.com --source 203.0.113.9
  sni-proxy trace --sni api.a.example.com --certificate cn=jane,o=devs
  sni-proxy trace --destination 10.1.2.3:443 --listener node
  sni-proxy trace --connect 'outbound|443||kube-apiserver.shoot--a--b.svc.cluster.local'
  sni-proxy trace --wireguard 77 --admin unix:/run/rhizome/admin.sock --output json

Exit codes: 0 a connection would be led to an endpoint, 1 it would not or the gateway does not
answer, 64 the question is wrong.";

/// The question, the gateway that is asked, and the format of the answer.
#[derive(Clone, Debug, Args)]
pub struct TraceFlags {
    #[command(flatten)]
    target: TargetFlags,

    /// The client's address: whether it may use the route, its limit, its endpoint with maglev.
    #[arg(long, value_name = "IP")]
    source: Option<IpAddr>,

    /// The subject of the client's certificate, where TLS ends in the gateway: which user and groups its requests have.
    #[arg(long, value_name = "cn=NAME,o=GROUP")]
    certificate: Option<Subject>,

    /// The listener that it connects to; the first that takes such a thing when left out.
    #[arg(long, value_name = "NAME")]
    listener: Option<String>,

    /// Admin address of the gateway: IP:PORT or unix:PATH.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9901")]
    pub(crate) admin: EndpointAddr,

    /// How the answer is written.
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub(crate) output: Output,
}

/// Where the connection wants to go.
#[derive(Clone, Debug, Args)]
#[group(required = true, multiple = false)]
struct TargetFlags {
    /// A TLS server name; empty for a client that sends none.
    #[arg(long, value_name = "NAME")]
    sni: Option<String>,

    /// The destination in a node proxy's PROXY header.
    #[arg(long, value_name = "IP:PORT")]
    destination: Option<SocketAddr>,

    /// The value of the header that names a CONNECT request's destination.
    #[arg(long, value_name = "VALUE")]
    connect: Option<String>,

    /// A tunnel server's route id, or its public key.
    #[arg(long, value_name = "ROUTE_ID|PUBLIC_KEY")]
    wireguard: Option<WireGuardServer>,
}

/// How a trace is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// For programs.
    Json,
    /// For people.
    Text,
}

impl TraceFlags {
    /// Returns what is asked; `None` without a target, which the flags do not allow.
    pub(crate) fn question(&self) -> Option<Question> {
        let of = self.target.clone();
        let target = { of.sni.map(Target::ServerName) }
            .or_else(|| of.destination.map(Target::Destination))
            .or_else(|| of.connect.map(Target::Connect))
            .or_else(|| of.wireguard.map(Target::WireGuard))?;
        Some(Question {
            target,
            source: self.source,
            certificate: self.certificate.clone(),
            listener: self.listener.clone(),
        })
    }
}

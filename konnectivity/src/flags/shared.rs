//! Flags that both programs have, among them all of klog's.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use schemars::JsonSchema;
use serde::Serialize;
use settings::{ByteSize, GoDuration, RelPath};

pub(crate) const AGENTS: &str = "Agents";
pub(crate) const ENDPOINTS: &str = "Health, metrics and admin endpoints";
pub(crate) const NO_EFFECT: &str = "Accepted, without effect";
pub(crate) const LIMITS: &str = "Limits";
pub(crate) const LOGS: &str = "Logs";
pub(crate) const SERVERS: &str = "Servers";
pub(crate) const SHUTDOWN: &str = "Shutdown";

/// Where the configuration is, and whether it is only checked. No keys of the file.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Configuration")]
pub(crate) struct RunFlags {
    /// YAML file with flags as keys; the command line wins, paths are relative to the file.
    #[arg(long)]
    pub(crate) config: Option<PathBuf>,
    /// Validate the configuration and the files it names, print what is in effect, and exit.
    #[arg(long)]
    pub(crate) check: bool,
}

/// What is logged, and how.
#[derive(Clone, Debug, Args, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[command(next_help_heading = LOGS)]
pub(crate) struct LogFlags {
    /// Format of the log on standard error.
    #[arg(long, default_value = "text")]
    pub(crate) log_format: LogWord,
    /// Log verbosity: up to 4 is info, 5 to 7 debug, 8 and more trace. RUST_LOG wins.
    #[arg(long, short, default_value = "4")]
    pub(crate) v: i32,
    /// Verbosity of single modules, as in server=5,link=8; patterns have no effect.
    #[arg(long)]
    pub(crate) vmodule: Vec<String>,
}

/// Bounds on buffered data.
#[derive(Clone, Debug, Args, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[command(next_help_heading = LIMITS)]
pub(crate) struct BufferFlags {
    /// Maximum bytes buffered for all tunnels together; at least 4MiB, the share of one tunnel.
    #[arg(long, default_value = "256MiB")]
    pub(crate) max_buffered_bytes: ByteSize,
    /// Maximum time a reader may accept nothing before its tunnel is closed, where the peer knows no
    /// flow control; less when memory is short.
    #[arg(long, default_value = "30s")]
    pub(crate) slow_consumer_timeout: GoDuration,
}

/// Flags that do nothing here.
#[derive(Clone, Debug, Args, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[command(next_help_heading = NO_EFFECT)]
pub(crate) struct NoEffectFlags {
    /// Accepted, has no effect: klog's.
    #[arg(long)]
    add_dir_header: bool,
    /// Accepted, has no effect: klog's. Logs always go to standard error.
    #[arg(long)]
    alsologtostderr: bool,
    /// Accepted, has no effect: there is no lock contention to profile.
    #[arg(long)]
    pub(crate) enable_contention_profiling: bool,
    /// Accepted, has no effect: attach a profiler to the process instead.
    #[arg(long)]
    pub(crate) enable_profiling: bool,
    /// Accepted, has no effect: requests to the API server are JSON.
    #[arg(long, default_value = "application/vnd.kubernetes.protobuf")]
    kube_api_content_type: String,
    /// Accepted, has no effect: klog's.
    #[arg(long, default_value = ":0")]
    log_backtrace_at: String,
    /// Accepted, has no effect: klog's. Logs always go to standard error.
    #[arg(long, default_value = "")]
    log_dir: RelPath,
    /// Accepted, has no effect: klog's. Logs always go to standard error.
    #[arg(long, default_value = "")]
    log_file: RelPath,
    /// Accepted, has no effect: klog's.
    #[arg(long, default_value = "1800")]
    log_file_max_size: u64,
    /// Accepted, has no effect when false: klog's. Logs always go to standard error.
    #[arg(long, default_value = "true")]
    logtostderr: bool,
    /// Accepted, has no effect: klog's.
    #[arg(long)]
    one_output: bool,
    /// Accepted, has no effect: klog's.
    #[arg(long)]
    skip_headers: bool,
    /// Accepted, has no effect: klog's.
    #[arg(long)]
    skip_log_headers: bool,
    /// Accepted, has no effect: klog's. Logs always go to standard error.
    #[arg(long, default_value = "2")]
    stderrthreshold: String,
}

/// How logs are written.
#[derive(Clone, Copy, Debug, ValueEnum, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum LogWord {
    /// One object per line.
    Json,
    /// For people.
    Text,
}

//! The values that the page and `/status` show.

use std::time::Duration;

use serde::{Serialize, Serializer};

/// The state of a process at one moment.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Status {
    /// The binary's version.
    pub version: &'static str,
    /// Since the process started; written in seconds.
    #[serde(rename = "uptime_seconds", serialize_with = "seconds")]
    pub uptime: Duration,
    /// Whether it is draining.
    pub draining: bool,
    /// The number of the snapshot in effect, for a binary that has one.
    pub generation: Option<u64>,
    /// How long it has been in effect; written in seconds.
    #[serde(rename = "generation_age_seconds", serialize_with = "optional_seconds")]
    pub generation_age: Option<Duration>,
    /// Anything else that fits a line, in the order to show it.
    pub facts: Vec<Fact>,
    /// Every listener.
    pub listeners: Vec<ListenerStatus>,
    /// Clusters to show, not all of them where there are many.
    pub clusters: Vec<ClusterStatus>,
    /// How many clusters there are, or how many match when a filter was given.
    pub clusters_total: usize,
}

/// One line of what only this binary has.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Fact {
    /// What it is.
    pub name: String,
    /// Its value.
    pub value: String,
}

/// One listener.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ListenerStatus {
    /// Its name.
    pub name: String,
    /// The address it is bound to.
    pub address: String,
    /// What it speaks.
    pub protocol: String,
    /// Connections now.
    pub active: u64,
    /// Connections since start.
    pub total: u64,
    /// Bytes from downstream since start.
    pub rx_bytes: u64,
    /// Bytes to downstream since start.
    pub tx_bytes: u64,
}

/// One cluster.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ClusterStatus {
    /// Its name.
    pub name: String,
    /// Connections now.
    pub active: u64,
    /// Failed attempts to connect since start.
    pub failures: u64,
    /// Its endpoints.
    pub endpoints: Vec<EndpointStatus>,
}

impl ClusterStatus {
    /// Returns whether the name or an endpoint's address contains `filter`, in any case.
    pub fn matches(&self, filter: &str) -> bool {
        let filter = filter.to_ascii_lowercase();
        let contains = |text: &str| text.to_ascii_lowercase().contains(&filter);
        contains(&self.name)
            || self
                .endpoints
                .iter()
                .any(|endpoint| contains(&endpoint.address))
    }
}

/// One endpoint.
#[derive(Clone, Debug, Default, Serialize)]
pub struct EndpointStatus {
    /// Its address.
    pub address: String,
    /// Its zone, where known.
    pub zone: Option<String>,
    /// `ready`, `healthy` and `up` are shown as good, `ejected`, `failed`, `down` and `unhealthy`
    /// as bad, any other word as neither.
    pub state: &'static str,
    /// Connections now.
    pub active: u64,
}

/// What `/status` answers, and the page is made from.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct View {
    pub(crate) binary: &'static str,
    /// `None` when ready.
    pub(crate) not_ready: Option<String>,
    #[serde(flatten)]
    pub(crate) status: Status,
}

fn seconds<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_secs_f64())
}

fn optional_seconds<S: Serializer>(
    duration: &Option<Duration>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    duration
        .map(|duration| duration.as_secs_f64())
        .serialize(serializer)
}

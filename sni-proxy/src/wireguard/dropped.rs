//! Why a datagram was not forwarded: the closed set that the metric has.
//!
//! Decides nothing; the words are a contract with dashboards and alerts.

use tunnel_proto::datagram::DatagramError;
use tunnel_proto::mac1::ScanError;
use tunnel_proto::wrapped::WrappedError;

telemetry::labels! {
    /// Why a datagram was not forwarded.
    #[repr(u8)]
    pub(super) enum Dropped {
        /// A handshake that names a server whose key its sender does not know.
        BadMac1 = "bad_mac1",
        /// The size is not that of the kind, or leaves no space to wrap it.
        BadSize = "bad_size",
        /// The client has as many proven flows as one client may have.
        ClientLimit = "client_limit",
        /// The cluster has as many flows as it may have.
        ClusterLimit = "cluster_limit",
        /// The process takes no new flows any more.
        Draining = "draining",
        /// The table is full, and no other holds more of it.
        FlowTable = "flow_table",
        /// The cluster has no usable endpoint.
        NoEndpoint = "no_endpoint",
        /// From a server: not a wrapped datagram.
        NotWrapped = "not_wrapped",
        /// The reserved bytes hold no route id.
        ReservedBits = "reserved_bits",
        /// The route id and the receiver's index name different servers.
        RouteDisagrees = "route_disagrees",
        /// The budget for trying keys was spent.
        ScanBudget = "scan_budget",
        /// Too many handshakes wait for keys to be tried.
        ScanQueue = "scan_queue",
        /// The kernel refused to send.
        SendFailed = "send_failed",
        /// The route does not allow this client.
        SourceDenied = "source_denied",
        /// The source has sent too much that belongs to no proven flow.
        SourceRate = "source_rate",
        /// From a server: for a client that was not heard from lately.
        UnknownClient = "unknown_client",
        /// None of WireGuard's kinds.
        UnknownKind = "unknown_kind",
        /// A handshake for no known server.
        UnknownMac1 = "unknown_mac1",
        /// No route has this number, or the datagram names none.
        UnknownRoute = "unknown_route",
        /// To the servers' port, but not from the server of the client's flow.
        UnknownSender = "unknown_sender",
        /// From a server: more than the client asked for.
        Unsolicited = "unsolicited",
    }
}

impl From<DatagramError> for Dropped {
    fn from(error: DatagramError) -> Self {
        match error {
            DatagramError::Disagree => Self::RouteDisagrees,
            DatagramError::Kind { .. } => Self::UnknownKind,
            DatagramError::Reserved => Self::ReservedBits,
            // The error may grow.
            DatagramError::Size { .. } | _ => Self::BadSize,
        }
    }
}

impl From<ScanError> for Dropped {
    fn from(error: ScanError) -> Self {
        match error {
            ScanError::Budget => Self::ScanBudget,
            ScanError::NotHandshake => Self::BadSize,
            // As above.
            ScanError::Unknown | _ => Self::UnknownMac1,
        }
    }
}

impl From<WrappedError> for Dropped {
    fn from(_: WrappedError) -> Self {
        Self::NotWrapped
    }
}

#[cfg(test)]
mod tests {
    use super::Dropped;

    #[test]
    fn words_are_distinct_and_sorted() {
        let words = Dropped::ALL.map(Dropped::as_str);
        assert!(words.is_sorted_by(|one, next| one < next));
    }
}

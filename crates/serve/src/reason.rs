//! Why a connection ended: the closed set that access logs and metrics share.
//!
//! Does not decide anything; the words are a contract with dashboards and alerts.

telemetry::labels! {
    /// Why a connection ended.
    #[repr(u8)]
    pub enum Reason {
        /// The PROXY header is missing, damaged or of the wrong kind.
        BadProxyHeader = "bad_proxy_header",
        /// Both peers finished.
        Closed = "closed",
        /// The endpoints could not be connected for a reason other than the next two.
        ConnectFailed = "connect_failed",
        /// The endpoints refused.
        ConnectRefused = "connect_refused",
        /// The endpoints did not answer in time.
        ConnectTimeout = "connect_timeout",
        /// The downstream peer reset the connection or vanished.
        DownstreamReset = "downstream_reset",
        /// The process drained and the grace period ended.
        Drained = "drained",
        /// No byte was relayed for the idle limit.
        IdleTimeout = "idle_timeout",
        /// A defect of this program.
        Internal = "internal",
        /// The limit of connections, of the process or the cluster, is reached.
        Limit = "limit",
        /// The preamble breaks its protocol.
        Malformed = "malformed",
        /// The connection reached its maximum age.
        MaxAge = "max_age",
        /// The cluster has no usable endpoint.
        NoEndpoint = "no_endpoint",
        /// The ClientHello names no server.
        NoServerName = "no_server_name",
        /// The first bytes are not TLS.
        NotTls = "not_tls",
        /// The preamble was not complete in time.
        PreambleTimeout = "preamble_timeout",
        /// The preamble is longer than allowed.
        PreambleTooLong = "preamble_too_long",
        /// The request was answered by a redirect.
        Redirected = "redirected",
        /// The route does not allow this client.
        SourceDenied = "source_denied",
        /// The client is at its limit of connections.
        SourceLimit = "source_limit",
        /// No route leads to the destination.
        UnknownDestination = "unknown_destination",
        /// No route has this server name.
        UnknownServerName = "unknown_server_name",
        /// A peer that may not send a load balancer's PROXY header did.
        UntrustedProxy = "untrusted_proxy",
        /// The endpoint reset the connection or vanished.
        UpstreamReset = "upstream_reset",
    }
}

impl From<&relay::Outcome> for Reason {
    fn from(outcome: &relay::Outcome) -> Self {
        match outcome {
            relay::Outcome::Closed => Self::Closed,
            relay::Outcome::IdleTimeout => Self::IdleTimeout,
            relay::Outcome::MaxAge => Self::MaxAge,
            relay::Outcome::Reset {
                side: relay::Side::Downstream,
                ..
            } => Self::DownstreamReset,
            relay::Outcome::Reset {
                side: relay::Side::Upstream,
                ..
            } => Self::UpstreamReset,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Reason;

    #[test]
    fn words_are_distinct_and_sorted() {
        let words = Reason::ALL.map(Reason::as_str);
        assert!(words.is_sorted_by(|one, next| one < next));
    }
}

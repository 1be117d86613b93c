//! Why a connection ended: the closed set that access logs and metrics share.
//!
//! Does not decide anything; the words are a contract with dashboards and alerts.

/// Why a connection ended.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    strum::IntoStaticStr,
    strum::VariantArray,
)]
#[repr(u8)]
#[strum(serialize_all = "snake_case")]
pub enum Reason {
    /// The PROXY header is missing, damaged or of the wrong kind.
    BadProxyHeader,
    /// Both peers finished.
    Closed,
    /// The endpoints could not be connected for a reason other than refusal and time.
    ConnectFailed,
    /// The endpoints refused.
    ConnectRefused,
    /// The endpoints did not answer in time.
    ConnectTimeout,
    /// The downstream peer reset the connection or vanished.
    DownstreamReset,
    /// The process drained and the grace period ended.
    Drained,
    /// No byte was relayed for the idle limit.
    IdleTimeout,
    /// A defect of this program.
    Internal,
    /// The limit of connections, of the process or the cluster, is reached.
    Limit,
    /// The preamble breaks its protocol.
    Malformed,
    /// The connection reached its maximum age.
    MaxAge,
    /// The cluster has no usable endpoint.
    NoEndpoint,
    /// The ClientHello names no server.
    NoServerName,
    /// The first bytes are not TLS.
    NotTls,
    /// The preamble was not complete in time.
    PreambleTimeout,
    /// The preamble is longer than allowed.
    PreambleTooLong,
    /// The request was answered by a redirect.
    Redirected,
    /// The route does not allow this client.
    SourceDenied,
    /// The client is at its limit of connections.
    SourceLimit,
    /// No route leads to the destination.
    UnknownDestination,
    /// No route has this server name.
    UnknownServerName,
    /// A peer that may not send a load balancer's PROXY header did.
    UntrustedProxy,
    /// The endpoint reset the connection or vanished.
    UpstreamReset,
}

impl Reason {
    /// Every reason, in order.
    pub const ALL: &[Self] = <Self as strum::VariantArray>::VARIANTS;

    /// Returns the label that logs and metrics use.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
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
    use super::*;

    #[test]
    fn reasons_have_distinct_sorted_words() {
        for (index, reason) in Reason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, index);
        }
        let mut words: Vec<&str> = Reason::ALL.iter().map(|reason| reason.as_str()).collect();
        let count = words.len();
        words.dedup();
        assert_eq!(words.len(), count);
        assert!(words.is_sorted());
    }
}

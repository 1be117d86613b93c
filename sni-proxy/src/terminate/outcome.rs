//! Why a handshake failed or a connection ended, in the words of metrics and logs.

use http::StatusCode;
use serve::Reason;

use super::http1_stream::HttpState;
use super::metrics::Handshake;

/// Returns why the requests of a connection have ended.
pub(crate) fn reason_of(served: Result<(), hyper::Error>, state: &HttpState) -> Reason {
    // What hyper makes of it is an end like others.
    if state.is_silent() {
        return Reason::PreambleTimeout;
    }
    let Err(error) = served else {
        return Reason::Closed;
    };
    match state.refused() {
        Some(StatusCode::REQUEST_TIMEOUT) => Reason::PreambleTimeout,
        Some(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE | StatusCode::URI_TOO_LONG) => {
            Reason::PreambleTooLong
        }
        _ if state.is_reset() => Reason::IdleTimeout,
        _ if error.is_parse() => Reason::Malformed,
        _ => Reason::DownstreamReset,
    }
}

/// Returns how a handshake has failed, and why its connection ends.
pub(crate) fn why_failed(error: &std::io::Error) -> (Handshake, Reason) {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    let outcome = match inner {
        None => return (Handshake::Closed, Reason::DownstreamReset),
        Some(rustls::Error::InvalidCertificate(_)) => Handshake::Certificate,
        Some(rustls::Error::AlertReceived(_)) => Handshake::Alert,
        Some(rustls::Error::PeerIncompatible(_) | rustls::Error::NoApplicationProtocol) => {
            Handshake::Incompatible
        }
        Some(_) => Handshake::Protocol,
    };
    (outcome, Reason::Malformed)
}

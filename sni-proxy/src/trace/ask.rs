//! Asks a running gateway, over its admin address.
//!
//! ```text
//!     Question ─▶ GET /trace?… ─TCP or Unix socket─▶ gateway ─▶ JSON ─▶ Trace
//! ```
//!
//! Does not look at what the answer says.

use std::io;
use std::time::Duration;

use telemetry::EndpointAddr;
use telemetry::http::get;

use super::question::Question;
use super::report::Trace;

/// How long the answer may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes of the longest answer; 256 endpoints are some 64 KiB.
const MAX_ANSWER: u64 = 4 << 20;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// What answers is no gateway, or an older one.
    #[error("{0} answers, but not as a gateway: {1}")]
    Answer(EndpointAddr, String),
    /// The gateway cannot answer the question as it is.
    #[error("{0}")]
    Question(String),
    /// The gateway cannot be reached.
    #[error("asking the gateway at {0}")]
    Reach(EndpointAddr, #[source] io::Error),
}

/// Asks the gateway whose admin address this is; returns its answer, and the JSON that it came as.
pub(super) async fn ask(
    address: &EndpointAddr,
    question: &Question,
) -> Result<(Trace, String), AskError> {
    let answer = |what: String| AskError::Answer(address.clone(), what);
    let path = format!("/trace?{}", question.to_query());
    let answered = get(address, &path, MAX_ANSWER, TIMEOUT).await;
    let answered = answered.map_err(|error| AskError::Reach(address.clone(), error))?;
    let (head, body) = answered
        .split_once("\r\n\r\n")
        .ok_or_else(|| answer("it ended early".to_owned()))?;
    match head.split_ascii_whitespace().nth(1) {
        Some("200") => match serde_json::from_str(body) {
            Ok(trace) => Ok((trace, body.to_owned())),
            Err(error) => Err(answer(format!("no trace: {error}"))),
        },
        Some("400") => Err(AskError::Question(body.trim_end().to_owned())),
        Some("404") => Err(answer(
            "it has no /trace; is this the admin address?".to_owned(),
        )),
        _ => {
            let first = head.lines().next().unwrap_or_default();
            Err(answer(first.to_owned()))
        }
    }
}

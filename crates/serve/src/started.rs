//! Asks the process of a configuration whether it serves, as a pod's startup and liveness probes do.
//!
//! ```text
//!     admin.address ── GET /healthz ─▶ 200: it listens wherever it shall
//! ```
//!
//! While two processes follow each other on a node, both have the port of probes; which one answers there is
//! the kernel's choice. The admin address is one process's alone, so its answer is its own. Whether it
//! is ready is not asked.

use std::io;
use std::time::Duration;

use telemetry::EndpointAddr;
use telemetry::http::get;

/// How long the answer may take. It comes at once, but for a process that is starting.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Bytes of an answer that are looked at, up to the end of its status.
const STATUS_END: u64 = "HTTP/1.1 200".len() as u64;

/// Why a process does not count as started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotStarted {
    /// It cannot be told from another process.
    #[error("admin.address is off: only there a process can be asked whether it has started")]
    NoAdmin,
    /// It says that it should be restarted, or something else answers.
    #[error("{0} answers {1:?}, not 200")]
    Refused(EndpointAddr, String),
    /// No answer, or not in time.
    #[error("asking {0}")]
    Unreachable(EndpointAddr, #[source] io::Error),
}

/// Asks the process that has this admin address whether it serves.
///
/// # Errors
/// Why it does not, as far as can be told.
pub async fn started(admin: &EndpointAddr) -> Result<(), NotStarted> {
    if *admin == EndpointAddr::None {
        return Err(NotStarted::NoAdmin);
    }
    match get(admin, "/healthz", STATUS_END, TIMEOUT).await {
        Ok(answer) if answer.ends_with(" 200") => Ok(()),
        Ok(answer) => Err(NotStarted::Refused(admin.clone(), answer)),
        Err(error) => Err(NotStarted::Unreachable(admin.clone(), error)),
    }
}

//! The data thread: one loop over the device, sockets, streams and timers.

use crate::handle::{Ends, Identity, Params, Sockets, StartError};

pub(crate) fn start(
    _params: Params,
    _identity: Identity,
    _sockets: Sockets,
    _registry: &telemetry::Registry,
    _ends: Ends,
) -> Result<(), StartError> {
    Err(StartError::Thread(std::io::ErrorKind::Unsupported.into()))
}

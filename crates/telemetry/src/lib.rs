//! telemetry
#![forbid(unsafe_code)]

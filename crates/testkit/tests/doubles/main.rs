//! The doubles that other tests rely on, from outside: each does what it says.
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests, which clippy does not see as such"
)]

mod konnectivity;
mod netpol;
mod upstream;

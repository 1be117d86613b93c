//! What the tests share: the two programs, certificates, destinations and what programs say.

mod agent;
mod balancer;
mod destination;
mod pki;
mod probe;
mod rig;
mod server;
mod token_review;

use std::time::Duration;

pub(crate) use agent::{Agent, AgentFlags};
pub(crate) use balancer::Balancer;
pub(crate) use destination::{Held, Refusing, Unanswering, assert_ends, noise};
pub(crate) use pki::{Pki, SERVICE};
pub(crate) use probe::{AGENT, Probe, SERVER};
pub(crate) use rig::{Backend, Kind, Rig, dial, refusal, tunnel};
pub(crate) use server::{Mode, Server, ServerFlags};
pub(crate) use token_review::TokenReviews;

/// A wait that lasts this long has failed; on an idle machine nothing takes a tenth of it.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// Makes a test of each function for each pairing of frontend and agent.
macro_rules! pairings {
    ($($name:ident),* $(,)?) => {
        pairings!(@ http_rust, Mode::Http, Kind::Rust, $($name),*);
        pairings!(@ http_go, Mode::Http, Kind::Go, $($name),*);
        pairings!(@ grpc_rust, Mode::Grpc, Kind::Rust, $($name),*);
        pairings!(@ grpc_go, Mode::Grpc, Kind::Go, $($name),*);
    };
    (@ $pairing:ident, $mode:expr, $kind:expr, $($name:ident),*) => {
        mod $pairing {
            use crate::support::{Kind, Mode, Rig};

            $(
                #[test]
                fn $name() {
                    super::$name(&Rig::start($mode, $kind));
                }
            )*
        }
    };
}
pub(crate) use pairings;

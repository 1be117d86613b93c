//! `rhizome-bench https`: requests through gateways in which TLS ends, ours and Envoy.
//!
//! ```text
//!   load ──TLS, a client's certificate──▶ gateway ──TLS, its own, and the user in headers──▶ servers
//!   (one processor)                       (another)                                          (the load's)
//! ```
//!
//! One gateway runs at a time, and is started anew for each case; rounds go through all of them, every
//! other one backwards.

mod args;
mod client;
mod known;
mod lab;
mod load;
mod server;
mod spread;
mod watches;
mod world;

#[cfg(test)]
mod tests;

use std::process::ExitCode;

use anyhow::Result;
use testkit::netns::Place;

use self::args::Case;
use self::client::Protocol;
use self::lab::Lab;
use self::server::SMALL;
use self::world::World;
use crate::cpus::Bound;
use crate::output::Output;
use crate::profile::{Listener, Profile};
use crate::programs::Given;
use crate::progress::Progress;
use crate::tls::sheet::Sheet;
use crate::tls::{network, present, runtime};
use crate::{interrupt, limits, machine};

pub(crate) use self::args::Https;

/// Measures what was asked for and prints it: in a network of its own as root, else on this machine's
/// loopback.
pub(crate) fn run(asked: &Https, output: &Output) -> Result<ExitCode> {
    asked.check()?;
    limits::raise()?;
    interrupt::watch()?;
    network::inside(|place, network| measured(asked, output, place, network))
}

fn measured(asked: &Https, output: &Output, place: Place<'_>, network: &str) -> Result<ExitCode> {
    // Before the load is bound, and finds one processor.
    let mut facts = machine::facts();
    let cpus = asked.cpus()?.bind_load()?;
    facts.push(("processors", cpus.asked().to_string()));
    facts.push(("network", network.to_owned()));
    let profiles = asked.chosen.profiles(&[Listener::Https])?;
    let profiles = present(profiles, &asked.chosen.program, &mut facts);
    let mut lab = Lab {
        asked,
        place,
        cpus: &cpus,
        world: World::new()?,
        sheet: Sheet::default(),
    };
    let failures = rounds(&mut lab, &profiles);
    lab.sheet.finish(output, facts, &failures, known::known)
}

/// Sends a request by each protocol; an answer shows who the gateway said the client is.
pub(crate) fn trial(profile: &Profile, given: &[Given], cpus: &Bound) -> Result<String> {
    let world = World::new()?;
    let servers = world.servers(1)?;
    let target = world.start(profile, &servers, (Place::Here, given, cpus))?;
    let client = world.client(profile, &target)?;
    let answered = runtime()?.block_on(async {
        for protocol in [Protocol::Http1, Protocol::Http2] {
            let mut connection = client.connect(protocol).await?;
            connection.get(&client, SMALL, |_| {}).await?;
        }
        Ok("routes, and takes the client's certificate".to_owned())
    });
    answered.map_err(|error| target.explain(error))
}

fn rounds(lab: &mut Lab<'_>, profiles: &[Profile]) -> Vec<String> {
    let cases = lab.asked.cases();
    let steps = cases
        .into_iter()
        .flat_map(|case| profiles.iter().map(move |profile| (profile, case)));
    // Without a gateway the load chooses one server.
    let able = |(profile, case): &(&Profile, Case)| !profile.is_direct() || *case != Case::Spread;
    let mut steps: Vec<_> = steps.filter(able).collect();
    let mut progress = Progress::new(steps.len() * lab.asked.rounds);
    for _ in 0..lab.asked.rounds {
        for (profile, case) in &steps {
            let what = format!("{}: {case:?}", profile.name);
            progress.run(&what, || lab.measure(profile, *case));
        }
        steps.reverse();
    }
    std::mem::take(&mut progress.failures)
}

const GET: &str = "get h2";
const GET_HTTP1: &str = "get http/1.1";
const HANDSHAKE: &str = "handshake";
const WATCH: &str = "watch";

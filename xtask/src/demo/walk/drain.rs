//! A gateway is told to stop while a watch runs and clients keep coming.

use std::io::ErrorKind;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use testkit::http;
use testkit::process::Signal;
use testkit::wait::{self, Stopwatch};

use super::Stage;
use crate::console::Console;
use crate::demo::gateway;
use crate::demo::node::Mode;
use crate::demo::watcher::Watcher;

pub(super) fn show(console: &mut Console, stage: &mut Stage) -> Result<()> {
    let (delay, timeout) = gateway::DRAIN;
    console.heading(&format!(
        "The gateway is drained: it accepts {delay:?} longer, and serves {timeout:?} longer"
    ));
    let watch = console.step("a watch runs, from the pod in shoot b", || {
        let watch = stage.watch_from_pod(1, Mode::Connect)?;
        Ok((watch, "events flow".to_owned()))
    })?;
    let clock = Stopwatch::start();
    console.check("SIGTERM: unready at once", || {
        stage.gateway.signal(Signal::TERM)?;
        let seed = &stage.network.seed;
        let unready = || matches!(gateway::probe(seed, "/readyz"), Ok(503));
        wait::until("the gateway to be unready", delay, unready)?;
        Ok("/readyz answers 503".to_owned())
    })?;
    console.check("new clients are served, then refused, never reset", || {
        let count = knock_until_refused(stage)?;
        let took = clock.elapsed();
        ensure!(count > 0, "none was served");
        ensure!(took >= delay, "refused after {took:.1?} already");
        let event = watch.wait_more(1);
        let event = event.context("the watch, after the port was closed")?;
        let served = format!("{count} served in {took:.1?}");
        Ok(format!("{served}; the watch is at event {event}"))
    })?;
    let name = "at the end of its time the rest is cut, and it ends";
    console.check(name, || finish(stage, &watch, clock))?;
    console.check("a gateway is started in its place", || {
        stage.start_gateway()?;
        Ok("ready".to_owned())
    })?;
    let name = "users are served again, and pods, whose proxy never stopped";
    console.check(name, || {
        stage.ask_by_name(&stage.shoots[0])?;
        stage.watch_from_pod(1, Mode::Connect)?;
        Ok("by name and by CONNECT".to_owned())
    })
}

/// Keeps connecting, several clients at a time, until no connection is accepted any more; returns how many
/// requests were served.
fn knock_until_refused(stage: &Stage) -> Result<u32> {
    let shoot = &stage.shoots[0];
    let target = stage.by_name(shoot);
    let knock = || {
        let deadline = wait::Deadline::after(gateway::DRAIN.0 + SLACK);
        let mut served = 0_u32;
        while !deadline.passed() {
            match shoot.ask(&target) {
                Ok(_) => served += 1,
                Err(error) if http::error_kind(&error) == Some(ErrorKind::ConnectionRefused) => {
                    return Ok(served);
                }
                Err(error) => {
                    let what = format!("after {served} requests, neither served nor refused");
                    return Err(error.context(what));
                }
            }
        }
        bail!("the gateway accepts longer than it should")
    };
    // Threads of a thread inside the namespace are inside too.
    stage.network.user.run(|| {
        std::thread::scope(|scope| {
            let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(knock)).collect();
            clients
                .into_iter()
                .map(|client| client.join().map_err(|_| anyhow!("a client panicked"))?)
                .sum()
        })
    })?
}

fn finish(stage: &mut Stage, watch: &Watcher, clock: Stopwatch) -> Result<String> {
    let (delay, timeout) = gateway::DRAIN;
    let status = stage.gateway.wait_exit(delay + timeout + SLACK)?;
    let took = clock.elapsed();
    if !status.success() {
        bail!("it ended with {status}:\n{}", stage.gateway.log_tail(10));
    }
    let events = watch.wait_end(SLACK)?;
    if took < delay + timeout {
        bail!("the watch was cut after {took:.1?}, before its time");
    }
    let got = format!("the watch got {events} events, none missing");
    Ok(format!("after {took:.1?}; {got}"))
}

const CLIENTS: usize = 4;
const SLACK: Duration = Duration::from_secs(5);

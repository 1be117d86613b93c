//! What is measured of one tunnel.
//!
//! ```text
//!   short network: start, first ping, idle pings, memory, ×1, ×8
//!   long network:  UDP blocked: start, first ping    25 ms each way: ×1, ×8    1 % lost: ×1, ×8
//!                  with a rate and a buffer: ×4, alone, beside a plain connection or another tunnel
//! ```

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use testkit::impair::{BlackHole, Impairment};
use testkit::wait::{self, Stopwatch};

use super::args::{ALONE, Case, TUNNEL, Tunnel as Asked};
use super::iperf::{self, Bulk, Moved};
use super::network::Network;
use super::ours::Programs;
use super::ping::{Pinger, Pings};
use super::plain::Plain;
use super::running::{Inner, Role, Tunnel};
use super::setup::{Kind, Setup};
use super::{figure, known};
use crate::report::{Figure, Run};

pub(crate) struct Lab {
    pub(crate) short: Network,
    pub(crate) long: Network,
    pub(crate) programs: Programs,
    pub(crate) run: Run,
}

pub(crate) fn fits(setup: Setup, case: Case) -> bool {
    let ours = matches!(setup.kind(), Kind::Rhizome { .. });
    match case {
        Case::Blocked => setup == Setup::RhizomeAuto,
        Case::Idle => setup != Setup::OpenvpnTcpBbr,
        // As it chooses is what one of the others is.
        Case::Bulk => setup != Setup::OpenvpnTcpBbr && setup != Setup::RhizomeAuto,
        // The others would only take time: by UDP, or the same program.
        Case::Rate => matches!(
            setup,
            Setup::Direct | Setup::RhizomeTcp | Setup::RhizomeUdpGateway | Setup::OpenvpnTcpBbr
        ),
        Case::Long | Case::Loss => setup != Setup::RhizomeAuto && (ours || wide(setup)),
    }
}

/// Peers whose window is worth a look over a long line.
fn wide(setup: Setup) -> bool {
    !matches!(setup, Setup::WireguardGo2022 | Setup::Boringtun)
}

impl Lab {
    pub(crate) fn short(&mut self, asked: &Asked, setup: Setup, bulk: bool) -> Result<()> {
        let mut tunnel = Tunnel::prepare(setup, &self.short, &self.programs)?;
        let took = tunnel.dial(&self.short)?;
        self.idle(asked, &mut tunnel, took)
            .map_err(|error| tunnel.explain(error))?;
        if bulk {
            for (case, streams) in [(known::BULK_1, 1), (known::BULK_8, 8)] {
                let load = load(asked, streams, asked.length());
                bulk_load(&mut self.run, &self.short, &mut tunnel, case, load)
                    .map_err(|error| tunnel.explain(error))?;
            }
        }
        Ok(())
    }

    fn idle(&mut self, asked: &Asked, tunnel: &mut Tunnel, took: Duration) -> Result<()> {
        let pinger = Pinger::open(&self.short.server, tunnel.inner())?;
        let turns = pinger.in_turn(asked.length())?;
        let clock = Stopwatch::start();
        let pings = pinger.run(|| clock.elapsed() > asked.length())?;
        let name = tunnel.setup.name();
        for (word, of) in [("pings in turn", &turns), ("ping each 10 ms", &pings)] {
            let case = format!("{}: {word}", known::IDLE);
            self.run.add_curve(name, &case, &of.latencies);
        }
        let mut add = |figure, value| self.run.add(name, known::IDLE, figure, value);
        add(figure::TURN_P50, micros(&turns, 0.5));
        add(figure::TURN_P99, micros(&turns, 0.99));
        add(figure::IDLE_P50, micros(&pings, 0.5));
        add(figure::IDLE_P99, micros(&pings, 0.99));
        if tunnel.setup == Setup::Direct {
            return Ok(());
        }
        add(figure::CONNECT, took.as_secs_f64() * 1e3);
        for (role, figure) in [
            (Role::Server, figure::SERVER_IDLE),
            (Role::Client, figure::CLIENT_IDLE),
            (Role::Gateway, figure::GATEWAY_IDLE),
        ] {
            if let Some(resident) = tunnel.resident(role)? {
                add(figure, resident);
            }
        }
        Ok(())
    }

    pub(crate) fn blocked(&mut self, setup: Setup) -> Result<()> {
        self.impair(Impairment::swallowing(BlackHole::Udp))?;
        let mut tunnel = Tunnel::prepare(setup, &self.long, &self.programs)?;
        let took = tunnel.dial(&self.long)?.as_secs_f64() * 1e3;
        let (name, figure) = (setup.name(), figure::CONNECT);
        self.run.add(name, known::BLOCKED, figure, took);
        Ok(())
    }

    pub(crate) fn long(&mut self, asked: &Asked, setup: Setup, lossy: bool) -> Result<()> {
        let (start, cases, loss) = if lossy {
            let cases = [(known::LOSS_1, 1), (known::LOSS_8, 8)];
            (known::LOSS, cases, 0.01)
        } else {
            let cases = [(known::LONG_1, 1), (known::LONG_8, 8)];
            (known::LONG, cases, 0.0)
        };
        self.impair(Impairment::long(HALF, loss))?;
        let mut tunnel = Tunnel::prepare(setup, &self.long, &self.programs)?;
        let took = tunnel.dial(&self.long)?.as_secs_f64() * 1e3;
        if setup != Setup::Direct {
            self.run.add(setup.name(), start, figure::CONNECT, took);
        }
        for (case, streams) in cases {
            let load = load(asked, streams, asked.long_length());
            bulk_load(&mut self.run, &self.long, &mut tunnel, case, load)
                .map_err(|error| tunnel.explain(error))?;
        }
        Ok(())
    }

    /// Measures four streams over each long line with a rate, beside each neighbor.
    pub(crate) fn rates(&mut self, asked: &Asked, setup: Setup) -> Result<()> {
        for rate in &asked.rate {
            for neighbor in &asked.neighbor {
                self.narrow(asked, setup, *rate, neighbor)?;
            }
        }
        Ok(())
    }

    fn narrow(&mut self, asked: &Asked, setup: Setup, rate: u64, neighbor: &str) -> Result<()> {
        let direct = setup == Setup::Direct;
        let second = neighbor == TUNNEL && matches!(setup.kind(), Kind::Rhizome { .. });
        if neighbor == TUNNEL && !second && !direct {
            return Ok(()); // the others have one server
        }
        self.impair(Impairment {
            rate: Some(rate * 1_000_000),
            buffer: Duration::from_millis(asked.buffer),
            queue: usize::MAX,
            ..Impairment::long(HALF, 0.0)
        })?;
        let servers = 1 + usize::from(second);
        let mut tunnel = Tunnel::prepare_several(setup, &self.long, &self.programs, servers)?;
        tunnel.dial(&self.long)?;
        if second {
            tunnel.first_ping(&self.long.second, Stopwatch::start())?;
        }
        let alone = neighbor == ALONE;
        let beside = if alone { "alone" } else { neighbor };
        let case = known::rate(rate, asked.buffer, beside);
        let leads = if alone {
            [Duration::ZERO; 2]
        } else {
            asked.leads()
        };
        let mut load = Bulk {
            lead: leads[0],
            ..load(asked, 4, asked.long_length())
        };
        if direct {
            // What the tunnel is to the line: one connection.
            (load.streams, load.congestion) = (1, "bbr");
        }
        let known = (direct && !alone && neighbor != TUNNEL)
            .then(|| Plain::open(&self.long, tunnel.inner().address, load.reverse, "bbr"))
            .transpose()?;
        let second_load = Bulk {
            lead: leads[1],
            ..load
        };
        let plain = Bulk {
            streams: 1,
            congestion: if neighbor == TUNNEL { "bbr" } else { neighbor },
            ..second_load
        };
        let (dir, inner) = (tunnel.dir.path().to_owned(), tunnel.inner());
        let (run, network) = (&mut self.run, &self.long);
        let beside = || {
            wait::pause(leads[0]);
            match second {
                true => iperf::run_second(network, inner, &dir, second_load),
                false => iperf::run_beside(network, &dir, plain),
            }
        };
        let (ours, plain) = std::thread::scope(|scope| {
            let plain = (!alone).then(|| scope.spawn(beside));
            wait::pause(leads[1]);
            let ours = match known {
                Some(plain) => loaded(run, network, &mut tunnel, &case, |_, _| plain.run(load)),
                None => bulk_load(run, network, &mut tunnel, &case, load),
            };
            let plain = plain.map(std::thread::ScopedJoinHandle::join);
            (ours, plain.unwrap_or_else(|| Ok(Ok(Moved::default()))))
        });
        let ours = ours.map_err(|error| tunnel.explain(error))?;
        let plain = plain.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        if !alone {
            let share = 100.0 * ours.bytes.min(plain.bytes) / (ours.bytes + plain.bytes);
            run.add(setup.name(), &case, figure::SHARE, share);
        } else if direct {
            let (address, reverse) = (tunnel.inner().address, load.reverse);
            let plain = Plain::open(network, address, reverse, load.congestion)?;
            let latencies = plain.messages(load.length, HALF)?;
            let figures = [figure::INSIDE_P50, figure::INSIDE_P99, figure::INSIDE_MAX];
            let part = (case.as_str(), Some("messages within"));
            run.add_latencies(setup.name(), part, figures, 1e3, &latencies);
        }
        Ok(())
    }

    fn impair(&self, impairment: Impairment) -> Result<()> {
        let link = self.long.link.as_ref().context("a line to impair")?;
        link.set_both(impairment);
        Ok(())
    }
}

fn load(asked: &Asked, streams: u32, length: Duration) -> Bulk<'static> {
    Bulk {
        streams,
        length,
        lead: Duration::ZERO,
        reverse: asked.reverse,
        // The one that the streams of most machines use; namespaces cannot be set to it everywhere.
        congestion: "cubic",
    }
}

fn bulk_load(
    run: &mut Run,
    network: &Network,
    tunnel: &mut Tunnel,
    case: &str,
    load: Bulk<'_>,
) -> Result<Moved> {
    let moved = |inner, dir: &Path| iperf::run(network, inner, dir, load);
    loaded(run, network, tunnel, case, moved)
}

/// Pings while `work` moves bytes through the tunnel.
fn loaded(
    run: &mut Run,
    network: &Network,
    tunnel: &mut Tunnel,
    case: &str,
    work: impl FnOnce(Inner, &Path) -> Result<Moved>,
) -> Result<Moved> {
    let pinger = Pinger::open(&network.server, tunnel.inner())?;
    let over = AtomicBool::new(false);
    let ends = [Role::Client, Role::Server];
    let gateway = [Role::Gateway];
    let before = (tunnel.cpu(&ends)?, tunnel.cpu(&gateway)?);
    let (moved, pings) = std::thread::scope(|scope| {
        let pings = scope.spawn(|| pinger.run(|| over.load(Ordering::Relaxed)));
        let moved = work(tunnel.inner(), tunnel.dir.path());
        over.store(true, Ordering::Relaxed);
        (moved, pings.join())
    });
    let pings = match pings {
        Ok(pings) => pings?,
        Err(panic) => std::panic::resume_unwind(panic),
    };
    let moved = moved?;
    let gigabytes = moved.bytes / 1e9;
    let used = tunnel.cpu(&ends)? - before.0;
    let hop = tunnel.cpu(&gateway)? - before.1;
    let mut add = |figure: Figure, value: f64| {
        run.add(tunnel.setup.name(), case, figure, value);
    };
    add(figure::THROUGHPUT, moved.rate / 1e6);
    if tunnel.setup != Setup::Direct {
        add(figure::CPU_ENDS, used / gigabytes);
    }
    if tunnel.has_gateway() {
        add(figure::CPU_ALL, (used + hop) / gigabytes);
    }
    if let Some(retransmits) = moved.retransmits {
        add(figure::RETRANSMITS, retransmits);
    }
    add(figure::LOADED_LOST, pings.lost());
    let name = tunnel.setup.name();
    let figures = [figure::LOADED_P50, figure::LOADED_P99, figure::LOADED_MAX];
    let part = (case, Some("pings beside"));
    run.add_latencies(name, part, figures, 1e3, &pings.latencies);
    Ok(moved)
}

fn micros(pings: &Pings, quantile: f64) -> f64 {
    pings.latencies.quantile(quantile).as_secs_f64() * 1e6
}

const HALF: Duration = Duration::from_millis(25);

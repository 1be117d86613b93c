//! One case of one profile: starts the servers and what is between, measures, and adds the figures.
//!
//! ```text
//! World ─▶ servers ─▶ target ─▶ load (again, if other processes used the processors) ─▶ sheet
//! ```

use anyhow::Result;
use testkit::netns::Place;

use super::args::{Case, Https};
use super::client::Protocol;
use super::known::APART;
use super::load::{self, Load};
use super::server::{LIST, SMALL, Server};
use super::world::World;
use super::{GET, GET_HTTP1, HANDSHAKE, WATCH, client::Client, spread, watches};
use crate::cpus::Bound;
use crate::profile::Profile;
use crate::tls::figure as of;
use crate::tls::sheet::Sheet;
use crate::tls::window::Meter;

pub(super) struct Lab<'a> {
    pub(super) asked: &'a Https,
    pub(super) place: Place<'a>,
    pub(super) cpus: &'a Bound,
    pub(super) world: World,
    pub(super) sheet: Sheet,
}

impl Lab<'_> {
    pub(super) fn measure(&mut self, profile: &Profile, case: Case) -> Result<()> {
        let count = if case == Case::Spread { SERVERS } else { 1 };
        let servers = self.world.servers(count)?;
        let given = &self.asked.chosen.program;
        let setting = (self.place, &given[..], self.cpus);
        let target = self.world.start(profile, &servers, setting)?;
        let client = self.world.client(profile, &target)?;
        let through = Through {
            setup: &profile.name,
            client,
            meter: Meter::of(&target),
        };
        let measured = match case {
            Case::Get | Case::GetHttp1 | Case::Handshake | Case::List => self.load(&through, case),
            Case::Watch => self.watch(&through, &servers),
            Case::Spread => self.spread(&through, servers),
        };
        measured.map_err(|error| target.explain(error))
    }

    fn load(&mut self, through: &Through<'_>, case: Case) -> Result<()> {
        let asked = self.asked;
        let (what, protocol, path, at_once) = match case {
            Case::GetHttp1 => (GET_HTTP1, Protocol::Http1, SMALL, asked.connections),
            Case::Handshake => (HANDSHAKE, Protocol::Http2, SMALL, asked.in_flight),
            Case::List => ("list", Protocol::Http2, LIST, asked.lists),
            Case::Get | Case::Spread | Case::Watch => {
                (GET, Protocol::Http2, SMALL, asked.connections)
            }
        };
        let load = Load {
            protocol,
            path,
            at_once,
            fresh: case == Case::Handshake,
            warm_up: asked.warm_up,
            length: asked.length,
        };
        let (setup, case) = (through.setup, format!("{what} ×{at_once}"));
        let (found, spent) = self.sheet.undisturbed(setup, &case, || {
            load::run(&through.client, load, &through.meter)
        })?;
        if path == LIST {
            self.sheet.bytes(setup, &case, found.bytes, &spent);
        } else {
            let done = found.latencies.count();
            self.sheet.operations(setup, &case, done, &spent);
        }
        self.sheet.latencies(setup, &case, &found.latencies);
        Ok(())
    }

    fn watch(&mut self, through: &Through<'_>, servers: &[Server]) -> Result<()> {
        let load = watches::Load {
            count: self.asked.watches,
            events: self.asked.events,
        };
        let (setup, case) = (through.setup, format!("{WATCH} ×{}", load.count));
        for server in servers {
            let outcome = watches::run(&through.client, server, load, &through.meter)?;
            if let (Some(before), Some(held)) = (outcome.before, outcome.held) {
                self.sheet.add(setup, &case, of::EMPTY, before / 1024.0);
                self.sheet.add(setup, &case, of::HELD, held / 1024.0);
                let each = (held - before) / load.count as f64;
                self.sheet.add(setup, &case, of::PER_CONNECTION, each);
            }
            let done = outcome.latencies.count();
            self.sheet.operations(setup, &case, done, &outcome.spent);
            self.sheet.latencies(setup, &case, &outcome.latencies);
        }
        Ok(())
    }

    fn spread(&mut self, through: &Through<'_>, servers: Vec<Server>) -> Result<()> {
        let (setup, clients) = (through.setup, self.asked.clients);
        let case = format!("spread ×{clients}");
        let start = |address| self.world.server(address);
        let outcome = spread::run(&through.client, servers, clients, self.asked.length, start)?;
        self.sheet.add(setup, &case, APART, outcome.apart());
        let failed = outcome.failed as f64;
        self.sheet.add(setup, &case, of::FAILED, failed);
        Ok(())
    }
}

/// What load goes through.
struct Through<'a> {
    setup: &'a str,
    client: Client,
    meter: Meter,
}

const SERVERS: usize = 3;

//! Flows that go to another process, and flows that came from one.
//!
//! ```text
//!     describe ─▶ records ─▶ adopt, by the routes of the other process: as if they had changed
//! ```

use std::sync::Arc;
use std::time::{Duration, Instant};

use route::{Endpoint, Route};
use serve::{ConnRecord, FlowRecord, Reason, endpoint_at};

use super::super::flow::{Flow, choose, holder};
use super::{Router, by_match, choice};

/// A route with the endpoint of a flow on it.
type Place = (Arc<Route>, (Arc<Endpoint>, std::net::SocketAddr));

impl Router {
    /// Describes all flows for another process.
    pub(in super::super) fn describe(&mut self, now: Instant) -> Vec<FlowRecord> {
        let listener = &self.listener.config.name;
        let mut all = Vec::new();
        for id in self.flows.ids() {
            let silent = self.flows.silent(now, id);
            let client = self.flows.client(id);
            if let (Some(client), Some(flow)) = (client, self.flows.get_mut(id)) {
                all.push(flow.describe(now, listener, client, silent));
            }
        }
        all
    }

    /// Forgets all flows, which another process has.
    pub(in super::super) fn leave(&mut self) {
        for id in self.flows.ids() {
            match self.flows.remove(id).map(|flow| flow.record) {
                Some(Some(record)) => {
                    self.metrics.proven.dec();
                    record.moved();
                }
                Some(None) => self.metrics.fresh.dec(),
                None => {}
            }
        }
    }

    /// Goes on with flows of another process, whatever the limits. Those whose route has changed end.
    pub(in super::super) fn adopt(&mut self, now: Instant, flows: Vec<FlowRecord>) {
        let published = Arc::clone(&self.published);
        let flows_of_all = Arc::clone(&self.worker.shared.flows);
        for moved in flows {
            let route = by_match(moved.route_id, &moved.public_keys, &published.snapshot);
            let connection = &moved.connection;
            let record = |route| {
                let context = &self.listener.context;
                ConnRecord::adopt(context, connection, route, &flows_of_all)
            };
            let (route, place) = match self.place(now, &moved, route) {
                Ok(place) => place,
                Err(reason) if moved.proven => {
                    record(None).close(reason);
                    continue;
                }
                Err(_) => {
                    self.metrics.unproven.inc();
                    continue;
                }
            };
            let record = moved.proven.then(|| record(Some(&route)));
            let record = record.map(|record| self.worker.handle.connections.hold(record));
            let client = connection.client();
            let silent = Duration::from_micros(connection.idle_micros);
            let heard = now.checked_sub(silent).unwrap_or(now);
            let holder = holder(&route, client.ip());
            let flow = Flow::adopt(now, route, place, &moved, record);
            let id = self.flows.insert(heard, client, holder, flow);
            if moved.proven {
                self.flows.prove(id);
                self.metrics.proven.inc();
            } else {
                self.metrics.fresh.inc();
            }
        }
    }

    /// Finds where a flow goes on, or why it does not.
    fn place(
        &self,
        now: Instant,
        moved: &FlowRecord,
        route: Option<&Arc<Route>>,
    ) -> Result<Place, Reason> {
        let connection = &moved.connection;
        let client = connection.client().ip();
        let route = route.filter(|route| route.serves(self.listener.index));
        let route = route.ok_or(Reason::UnknownDestination)?;
        if !route.allows(client) {
            return Err(Reason::SourceDenied);
        }
        let cluster = route.cluster();
        if connection.cluster.as_deref() != Some(cluster.name()) {
            return Err(Reason::Closed);
        }
        let server = connection.endpoint;
        let same = server.and_then(|at| Some((Arc::clone(endpoint_at(cluster, at)?), at)));
        let place = same.or_else(|| {
            let choice = choice(&self.worker, &self.published, client, now);
            choose(cluster, &choice, None)
        });
        Ok((Arc::clone(route), place.ok_or(Reason::NoEndpoint)?))
    }
}

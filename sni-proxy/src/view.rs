//! What the gateway tells its probes and its operators: what every process that routes connections
//! tells, and traces.
//!
//! ```text
//!     probe port, admin address ─▶ View ─┬─▶ serve::Admin
//!                                        └─▶ /trace ─▶ trace::answer
//! ```
//!
//! Only reads, but for what `serve::Admin` does.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use serde_json::Value;
use serve::{Admin, ListenerInfo};
use telemetry::admin::Extra;
use telemetry::{Process, Status};

use crate::trace::{self, Question};
use crate::worker::Shared;

/// Answers probes and operators.
pub(crate) struct View {
    pub(crate) admin: Admin,
    pub(crate) shared: Arc<Shared>,
    pub(crate) listeners: Vec<ListenerInfo>,
}

impl View {
    fn trace(&self, query: Option<&str>) -> Extra {
        let answered = Question::from_query(query)
            .and_then(|question| trace::answer(&self.shared, &self.listeners, &question));
        match answered.map(|trace| serde_json::to_string(&trace)) {
            Ok(Ok(body)) => (200, "application/json", body + "\n"),
            Ok(Err(error)) => (500, "text/plain", format!("{error}\n")),
            Err(error) => (400, "text/plain", format!("{error}\n")),
        }
    }
}

impl Process for View {
    fn binary(&self) -> &'static str {
        self.admin.binary()
    }

    fn ready(&self) -> Result<(), String> {
        self.admin.ready()
    }

    fn healthy(&self) -> Result<(), String> {
        self.admin.healthy()
    }

    fn config(&self) -> Value {
        self.admin.config()
    }

    fn snapshot(&self) -> Value {
        self.admin.snapshot()
    }

    fn connections(&self, limit: usize) -> Pin<Box<dyn Future<Output = Value> + Send + '_>> {
        self.admin.connections(limit)
    }

    fn drain(&self) {
        self.admin.drain();
    }

    fn status(&self) -> Status {
        self.admin.status()
    }

    fn status_of(&self, filter: &str) -> Status {
        self.admin.status_of(filter)
    }

    fn extra(&self, method: &str, path: &str, query: Option<&str>) -> Option<Extra> {
        self.admin.extra(method, path, query)
    }

    fn extra_admin(&self, method: &str, path: &str, query: Option<&str>) -> Option<Extra> {
        match path {
            "/trace" if method == "GET" => Some(self.trace(query)),
            _ => self.admin.extra_admin(method, path, query),
        }
    }
}

//! What a profile is started with, the same for all of a run.

use testkit::netns::Place;

use super::{Listener, Route};
use crate::cpus::Bound;
use crate::programs::Given;

#[derive(Clone, Debug)]
pub(crate) struct Setting<'a> {
    /// Our own network, or a namespace.
    pub(crate) place: Place<'a>,
    pub(crate) cpus: &'a Bound,
    /// Programs named on the command line.
    pub(crate) given: &'a Given,
    pub(crate) listener: Listener,
    pub(crate) routes: Vec<Route>,
}

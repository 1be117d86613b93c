//! Tests of the planner of one Service, by what decides its policies.

mod document;
mod exposures;
mod frozen;
mod hazards;
mod table;

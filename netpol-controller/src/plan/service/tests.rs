//! Tests of the planner of one Service.

//! Tests of the whole machine, from outside.

mod active;
mod calls;
mod kernel;
mod ladders;
mod limits;
mod operations;
mod passive;
mod simulation;
mod strangers;
mod support;
mod table_walk;
mod teardown;

//! Tests of the whole machine, from outside.

mod active;
mod calls;
mod document;
mod held;
mod kernel;
mod kernel_mra;
mod kernel_sidr;
mod ladders;
mod lap;
mod limits;
mod operations;
mod passive;
mod reach;
mod reasons;
mod repetition;
mod restart_storm;
mod restarts;
mod sidr;
mod simulation;
mod strangers;
mod support;
mod table_walk;
mod teardown;
mod xrc;

//! Placement: what may happen to memory while packets are in flight. Memory that vanishes, keys that are taken away under
//! fire, peers that die: never a signal, never a byte outside of what is registered, never one after a call that took the
//! right away has returned.

#[path = "../support/mod.rs"]
mod support;

mod arena;
mod chaos;
mod death;
mod pages;
mod receives;
mod recycle;
mod storm;
mod watched;
mod windows;

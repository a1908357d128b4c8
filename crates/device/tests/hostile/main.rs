//! Peers that keep to no rule: packets with a right ICRC and anything else in them, sent by hand. What they may reach is
//! their own connection; everybody else's goes on.

mod floods;
mod forger;
mod forgeries;
mod forked;
#[path = "../support/mod.rs"]
mod support;

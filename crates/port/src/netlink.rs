//! What the kernel knows of interfaces and routes, asked for over a netlink socket. Needs no privileges.

mod interface;
mod route;
mod socket;

pub(crate) use interface::kernel_soft_roce;
pub use interface::{Address, Interface, interfaces};
pub use route::{Route, RouteError, RouteQuery, default_route_interface, route};
pub use socket::{Monitor, bring_up};

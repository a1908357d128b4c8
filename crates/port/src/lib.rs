//! Datagram endpoints: slots of UDP 4791, the in-memory wire, ICRC, captures, netlink.

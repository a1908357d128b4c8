//! XRC domains.

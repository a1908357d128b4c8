//! Protection domains, thread domains, parent domains.

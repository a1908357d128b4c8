//! The interface of 2006, node IBVERBS_1.0.

//! The node IBVERBS_PRIVATE_34: what drivers of rdma-core need to load.

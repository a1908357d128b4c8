//! rdma_create_ep, rdma_get_request and what belongs to them.

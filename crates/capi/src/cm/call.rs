//! Commands of the rdma_ucm ABI, to the host service and back.

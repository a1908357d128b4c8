//! rdma_getaddrinfo.

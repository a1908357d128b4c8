//! Safe RDMA CM API.

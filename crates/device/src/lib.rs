//! The software RoCEv2 device: memory regions, queues, the driver loop.

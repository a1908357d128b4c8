//! One-line renderings of messages and packets, shared by logs, ladders and tools.

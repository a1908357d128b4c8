//! Completion queues that are polled field by field.

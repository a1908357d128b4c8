//! What a device and its port say of themselves.

//! Listening, connecting, accepting, rejecting, disconnecting.

//! What only the inside can show.

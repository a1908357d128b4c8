//! Memory windows.

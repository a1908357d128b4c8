//! Socket addresses, from C and to C.

//! Work requests and completions, from C and to C.

//! Test support: virtual clock, lossy network, ladder recorder.
#![forbid(unsafe_code)]

//! Every byte format and the field types they are made of.
#![no_std]
#![forbid(unsafe_code)]

//! Attributes in the form of the kernel: what librdmacm and its users convert.

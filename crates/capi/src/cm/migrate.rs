//! Moving an identifier to another channel.

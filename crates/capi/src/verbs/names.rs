//! Names of numbers, and rates.

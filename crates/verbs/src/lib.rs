//! Safe verbs API.

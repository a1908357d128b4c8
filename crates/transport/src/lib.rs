//! RC packet engine: requester, responder, PSNs, retry; sans-IO.
#![forbid(unsafe_code)]

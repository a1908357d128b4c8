//! The functions before `ibv_context`, and what of them is refused.

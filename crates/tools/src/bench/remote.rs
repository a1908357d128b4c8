//! Memory that the other side works on: offered by the responder, used by the requester.

use super::control::End;
use super::lanes::Lanes;
use super::plan::{Op, Plan};
use crate::failure::Failure;
use oarlock_verbs::{Buffer, SendRequest};

/// Memory of the responder for one queue pair.
#[derive(Debug)]
pub(super) struct Memory;

/// How the requester names it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target;

#[derive(Debug)]
pub(super) struct Remote;

pub(super) fn offer(plan: &Plan, _lanes: &Lanes, _end: &mut End) -> Result<Vec<Memory>, Failure> {
    match plan.op {
        Op::Send => Ok(Vec::new()),
        op => Err(Failure::Usage(format!("{op} is not possible yet"))),
    }
}

pub(super) fn targets(_plan: &Plan, _end: &End) -> Result<Vec<Target>, Failure> {
    Ok(Vec::new())
}

impl Remote {
    pub(super) fn new(_plan: &Plan, _target: Target) -> Self {
        Self
    }

    pub(super) fn request(&self, wr_id: u64, _number: u64, buffer: Buffer) -> SendRequest<'static> {
        SendRequest::new(wr_id, buffer)
    }

    pub(super) fn is_right(&self, _at: u32, _number: u64, _buffer: &[u8]) -> bool {
        true
    }
}

impl Memory {
    pub(super) fn compare(&self, _plan: &Plan, _at: u32, _posted: u64) -> Result<u64, Failure> {
        Ok(0)
    }
}

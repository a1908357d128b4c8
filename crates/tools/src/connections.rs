//! What a set of connections shares on each device: a protection domain and one completion queue.

use crate::failure::Failure;
use oarlock_rdmacm::Identifier;
use oarlock_verbs::{
    Completion, CompletionQueue, Context, ProtectionDomain, QpInitAttr, QueuePair,
};

/// The devices that a set of connections uses.
#[derive(Default)]
pub(crate) struct Devices {
    used: Vec<Device>,
    /// Completions that the queues must have room for.
    capacity: u32,
}

struct Device {
    context: Context,
    pd: ProtectionDomain,
    cq: CompletionQueue,
}

impl Devices {
    /// For queue pairs that together have at most `capacity` requests outstanding.
    pub(crate) fn with_capacity(capacity: u32) -> Self {
        Self {
            used: Vec::new(),
            capacity,
        }
    }

    /// Makes the identifier's queue pair on its device.
    pub(crate) fn queue_pair(
        &mut self,
        id: &Identifier,
        init: QpInitAttr,
    ) -> Result<(QueuePair, ProtectionDomain), Failure> {
        let context = id.device()?;
        let at = match self
            .used
            .iter()
            .position(|device| device.context == context)
        {
            Some(at) => at,
            None => {
                let cq = CompletionQueue::new(&context, self.capacity.max(1))?;
                self.used.push(Device {
                    pd: context.default_pd(),
                    cq,
                    context,
                });
                self.used.len() - 1
            }
        };
        let device = &self.used[at];
        let queue_pair = id.create_qp(&device.pd, &device.cq, &device.cq, init)?;
        Ok((queue_pair, device.pd.clone()))
    }

    /// Makes a queue pair that will carry nothing.
    pub(crate) fn idle_queue_pair(&mut self, id: &Identifier) -> Result<(), Failure> {
        let init = QpInitAttr {
            max_send_wr: 1,
            max_recv_wr: 1,
            ..QpInitAttr::default()
        };
        self.queue_pair(id, init).map(drop)
    }

    /// A counter of the devices' port, which is one for all devices of this process.
    pub(crate) fn counter(&self, name: &str) -> u64 {
        let of_device = |device: &Device| {
            let counters = device.context.counters();
            let found = counters.into_iter().find(|(known, _)| known == name);
            found.map_or(0, |(_, value)| value)
        };
        self.used.iter().map(of_device).max().unwrap_or(0)
    }

    /// Takes the completions that are there.
    pub(crate) fn poll(&self, completions: &mut Vec<Completion>) -> Result<usize, Failure> {
        let mut taken = 0;
        for device in &self.used {
            taken += device.cq.poll(completions)?;
        }
        Ok(taken)
    }

    /// Takes the completions that are there, or waits for the first of one device as long as is given.
    pub(crate) fn wait(
        &self,
        completions: &mut Vec<Completion>,
        limit: std::time::Duration,
    ) -> Result<usize, Failure> {
        match self.used.as_slice() {
            [only] => Ok(only.cq.wait(completions, Some(limit))?),
            _ => {
                let taken = self.poll(completions)?;
                if taken == 0 {
                    std::thread::sleep(limit);
                }
                Ok(taken)
            }
        }
    }
}

//! The channel between the two ends of a test, in one process or two: numbers, in step.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use oarlock_device::Region;
use oarlock_transport::RemoteAddress;
use oarlock_wire::RKey;

/// One end of the channel.
pub(crate) struct Control(UnixStream);

impl Control {
    /// Waits at most `patience` for the other end.
    pub(crate) fn new(stream: UnixStream, patience: Duration) -> Self {
        stream
            .set_read_timeout(Some(patience))
            .expect("a time to wait");
        Self(stream)
    }

    /// Says something to the other end.
    pub(crate) fn tell(&mut self, numbers: &[u64]) {
        let mut bytes = vec![numbers.len() as u8];
        bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        self.0.write_all(&bytes).expect("the other end lives");
    }

    /// Waits for what the other end says.
    pub(crate) fn told<const N: usize>(&mut self) -> [u64; N] {
        let mut count = [0];
        self.0.read_exact(&mut count).expect("the other end lives");
        assert_eq!(usize::from(count[0]), N, "both ends speak of the same");
        std::array::from_fn(|_| {
            let mut number = [0; 8];
            self.0.read_exact(&mut number).expect("the other end lives");
            u64::from_le_bytes(number)
        })
    }

    /// Says something and waits for what the other end says at the same point.
    pub(crate) fn swap<const N: usize>(&mut self, numbers: [u64; N]) -> [u64; N] {
        self.tell(&numbers);
        self.told()
    }

    /// Waits until the other end has come to the same point.
    pub(crate) fn meet(&mut self) {
        let [] = self.swap([]);
    }

    /// Tells the other end of memory of ours.
    pub(crate) fn offer(&mut self, region: &Region) {
        self.tell(&[region.iova(), region.rkey().0.into()]);
    }

    /// Memory of the other end.
    pub(crate) fn offered(&mut self) -> RemoteAddress {
        let [addr, rkey] = self.told();
        RemoteAddress {
            addr,
            rkey: RKey(rkey as u32),
        }
    }
}

//! The memory of one host, written from the specification (IBA Vol. 1 ch. 10 "Memory management") alone: regions, windows, keys,
//! rights, atomics, shared receive queues. A second opinion beside the device's.

use std::collections::BTreeMap;

use oarlock_transport::{
    AccessFlags, AtomicOp, BindWindow, HeldReceive, Memory, MemoryError, RemoteAccess, Sge,
    SharedReceive, Srq, SrqConfig,
};
use oarlock_wire::{LKey, RKey, Srqn};

/// Where the host's memory begins, as its local keys count.
pub(crate) const BASE: u64 = 0x7f00_0000_0000;

/// A region: `len` bytes of memory from index `start` on, which peers name from `iova` on.
#[derive(Clone, Debug)]
struct Region {
    start: usize,
    len: usize,
    iova: u64,
    access: AccessFlags,
    /// The program has not taken the pages away.
    mapped: bool,
}

/// A memory window.
#[derive(Clone, Debug)]
struct Window {
    is_type_2: bool,
    /// The key but for its low 8 bits, which change.
    upper: u32,
    bound: Option<Binding>,
}

#[derive(Clone, Debug)]
struct Binding {
    key: u32,
    region: u32,
    addr: u64,
    len: u64,
    access: AccessFlags,
}

/// A fault planted on purpose: the judge must find it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Plant {
    /// One bit of one WRITE is placed wrong.
    FlippedBit,
    /// One WRITE is placed a byte too far.
    Shifted,
    /// An atomic operation is executed twice.
    AtomicTwice,
    /// Invalidation does nothing.
    StaysValid,
    /// One packet of a message is not placed.
    NotPlaced,
    /// A READ fetches a wrong byte.
    ReadWrong,
    /// A right is not looked at.
    RightIgnored,
    /// The end of a window is not looked at.
    BoundIgnored,
    /// A completion gets lost.
    LostCompletion,
    /// A completion comes twice.
    DoubleCompletion,
    /// Two completions change places.
    SwappedCompletions,
    /// An immediate value is wrong.
    WrongImmediate,
}

impl Plant {
    pub(crate) const ALL: [Self; 12] = [
        Self::FlippedBit,
        Self::Shifted,
        Self::AtomicTwice,
        Self::StaysValid,
        Self::NotPlaced,
        Self::ReadWrong,
        Self::RightIgnored,
        Self::BoundIgnored,
        Self::LostCompletion,
        Self::DoubleCompletion,
        Self::SwappedCompletions,
        Self::WrongImmediate,
    ];
}

/// Memory, keys and shared receive queues of a host.
#[derive(Debug)]
pub(crate) struct Ram {
    pub(crate) bytes: Vec<u8>,
    regions: BTreeMap<u32, Region>,
    windows: Vec<Window>,
    pub(crate) srqs: BTreeMap<u32, Srq>,
    next_key: u32,
    pub(crate) plant: Option<Plant>,
}

impl Ram {
    pub(crate) fn new(len: usize, plant: Option<Plant>) -> Self {
        Self {
            bytes: vec![0; len],
            regions: BTreeMap::new(),
            windows: Vec::new(),
            srqs: BTreeMap::new(),
            next_key: 0x11,
            plant,
        }
    }

    fn fresh_key(&mut self) -> u32 {
        self.next_key += 0x35;
        self.next_key << 8 | 0x5A
    }

    /// Registers memory; gives its key, which is the local and the remote one.
    pub(crate) fn register(
        &mut self,
        start: usize,
        len: usize,
        iova: u64,
        access: AccessFlags,
    ) -> u32 {
        let key = self.fresh_key();
        let region = Region {
            start,
            len,
            iova,
            access,
            mapped: true,
        };
        self.regions.insert(key, region);
        key
    }

    /// The program takes the pages away.
    pub(crate) fn unmap(&mut self, key: u32) {
        self.regions.get_mut(&key).expect("a region").mapped = false;
    }

    /// A window that is bound to nothing; gives its key.
    pub(crate) fn window(&mut self, is_type_2: bool) -> u32 {
        let key = self.fresh_key();
        self.windows.push(Window {
            is_type_2,
            upper: key >> 8,
            bound: None,
        });
        key
    }

    pub(crate) fn add_srq(&mut self, srqn: u32, depth: u32) {
        let config = SrqConfig {
            max_wr: depth,
            max_sge: 4,
        };
        self.srqs.insert(srqn, Srq::new(config));
    }

    /// How the host's queue pairs see it.
    pub(crate) const fn view(&mut self, srqn: Option<u32>) -> View<'_> {
        View { ram: self, srqn }
    }

    fn local(
        &self,
        sge: &Sge,
        offset: usize,
        len: usize,
        writes: bool,
    ) -> Result<usize, MemoryError> {
        let key = sge.lkey;
        let region = self
            .regions
            .get(&key.0)
            .ok_or(MemoryError::InvalidKey(key))?;
        let out_of_bounds = MemoryError::OutOfBounds {
            addr: sge.addr,
            len: sge.len.into(),
        };
        let first = sge
            .addr
            .checked_sub(region.iova)
            .ok_or(out_of_bounds)
            .and_then(|first| usize::try_from(first).map_err(|_| out_of_bounds))?;
        if first
            .checked_add(sge.len as usize)
            .is_none_or(|end| end > region.len)
        {
            return Err(out_of_bounds);
        }
        if writes && !region.access.contains(AccessFlags::LOCAL_WRITE) {
            return Err(MemoryError::NotWritable(key));
        }
        if !region.mapped {
            let addr = sge.addr + offset as u64;
            let len = len as u64;
            return Err(MemoryError::Unmapped { addr, len });
        }
        Ok(region.start + first + offset)
    }

    /// Each stretch of memory that bytes `offset..offset + len` of the message lie in: where, and which bytes.
    fn stretches(
        &self,
        sges: &[Sge],
        offset: u64,
        len: usize,
        writes: bool,
    ) -> Result<Vec<(usize, usize, usize)>, MemoryError> {
        let (mut skip, mut done) = (offset as usize, 0);
        let mut stretches = Vec::new();
        for sge in sges {
            let size = sge.len as usize;
            if skip >= size {
                skip -= size;
                continue;
            }
            let take = (size - skip).min(len - done);
            if take > 0 {
                stretches.push((self.local(sge, skip, take, writes)?, done, take));
            }
            (skip, done) = (0, done + take);
            if done == len {
                break;
            }
        }
        assert_eq!(done, len, "the engine asks for more than the list holds");
        Ok(stretches)
    }

    /// Index of the byte that a peer names.
    fn remote(
        &self,
        key: RKey,
        addr: u64,
        len: u64,
        access: RemoteAccess,
    ) -> Result<usize, MemoryError> {
        let right = match access {
            RemoteAccess::Write => AccessFlags::REMOTE_WRITE,
            RemoteAccess::Read => AccessFlags::REMOTE_READ,
            RemoteAccess::Atomic => AccessFlags::REMOTE_ATOMIC,
        };
        let denied = MemoryError::RemoteAccessDenied { rkey: key, access };
        let outside = MemoryError::OutOfBounds { addr, len };
        let ignores_right = self.plant == Some(Plant::RightIgnored);
        if let Some(region) = self.regions.get(&key.0) {
            if !region.access.contains(right) && !ignores_right {
                return Err(denied);
            }
            return region.index(addr, len).ok_or(outside);
        }
        let binding = self
            .windows
            .iter()
            .find_map(|window| window.bound.as_ref().filter(|bound| bound.key == key.0))
            .ok_or(MemoryError::InvalidRemoteKey(key))?;
        if !binding.access.contains(right) && !ignores_right {
            return Err(denied);
        }
        let first = if binding.access.contains(AccessFlags::ZERO_BASED) {
            addr
        } else {
            addr.checked_sub(binding.addr).ok_or(outside)?
        };
        let fits = first.checked_add(len).is_some_and(|end| end <= binding.len);
        if !fits && self.plant != Some(Plant::BoundIgnored) {
            return Err(outside);
        }
        let region = self
            .regions
            .get(&binding.region)
            .ok_or(MemoryError::InvalidRemoteKey(key))?;
        region.index(binding.addr + first, len).ok_or(outside)
    }

    fn mapped_remote(
        &self,
        key: RKey,
        addr: u64,
        len: usize,
        access: RemoteAccess,
    ) -> Result<usize, MemoryError> {
        let at = self.remote(key, addr, len as u64, access)?;
        if self
            .regions
            .get(&key.0)
            .is_some_and(|region| !region.mapped)
        {
            let len = len as u64;
            return Err(MemoryError::Unmapped { addr, len });
        }
        Ok(at)
    }
}

impl Region {
    fn index(&self, addr: u64, len: u64) -> Option<usize> {
        let first = usize::try_from(addr.checked_sub(self.iova)?).ok()?;
        let end = first.checked_add(usize::try_from(len).ok()?)?;
        (end <= self.len).then_some(self.start + first)
    }
}

/// A host's memory as its queue pairs see it: the host has one protection domain, and one connection for everything that is
/// bound to one.
pub(crate) struct View<'a> {
    ram: &'a mut Ram,
    /// The shared receive queue that is not named by packets.
    srqn: Option<u32>,
}

impl View<'_> {
    /// Whether the planted fault is this one; it strikes once.
    fn strikes(&mut self, plant: Plant) -> bool {
        let strikes = self.ram.plant == Some(plant);
        if strikes {
            self.ram.plant = None;
        }
        strikes
    }
}

impl Memory for View<'_> {
    fn scatter(&mut self, sges: &[Sge], offset: u64, data: &[u8]) -> Result<(), MemoryError> {
        let stretches = self.ram.stretches(sges, offset, data.len(), true)?;
        if !data.is_empty() && self.strikes(Plant::NotPlaced) {
            return Ok(());
        }
        for (at, from, len) in stretches {
            self.ram.bytes[at..at + len].copy_from_slice(&data[from..from + len]);
        }
        Ok(())
    }

    fn gather(&mut self, sges: &[Sge], offset: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        for (at, to, len) in self.ram.stretches(sges, offset, out.len(), false)? {
            out[to..to + len].copy_from_slice(&self.ram.bytes[at..at + len]);
        }
        Ok(())
    }

    fn check_remote(
        &mut self,
        rkey: RKey,
        addr: u64,
        len: u64,
        access: RemoteAccess,
    ) -> Result<(), MemoryError> {
        assert!(len > 0, "the key of nothing is not looked at");
        self.ram.remote(rkey, addr, len, access)?;
        if access == RemoteAccess::Atomic && !addr.is_multiple_of(8) {
            return Err(MemoryError::Misaligned { addr });
        }
        Ok(())
    }

    fn write_remote(&mut self, rkey: RKey, addr: u64, data: &[u8]) -> Result<(), MemoryError> {
        let access = RemoteAccess::Write;
        let at = self.ram.mapped_remote(rkey, addr, data.len(), access)?;
        let shifted = self.strikes(Plant::Shifted);
        let to = &mut self.ram.bytes[at + usize::from(shifted)..];
        to[..data.len()].copy_from_slice(data);
        if self.strikes(Plant::FlippedBit) {
            self.ram.bytes[at] ^= 0x10;
        }
        Ok(())
    }

    fn read_remote(&mut self, rkey: RKey, addr: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        let access = RemoteAccess::Read;
        let at = self.ram.mapped_remote(rkey, addr, out.len(), access)?;
        out.copy_from_slice(&self.ram.bytes[at..at + out.len()]);
        if self.strikes(Plant::ReadWrong) {
            out[0] ^= 1;
        }
        Ok(())
    }

    fn atomic(&mut self, rkey: RKey, addr: u64, op: AtomicOp) -> Result<u64, MemoryError> {
        let at = self
            .ram
            .mapped_remote(rkey, addr, 8, RemoteAccess::Atomic)?;
        if !addr.is_multiple_of(8) {
            return Err(MemoryError::Misaligned { addr });
        }
        let word = &mut self.ram.bytes[at..at + 8];
        let before = u64::from_ne_bytes((&*word).try_into().expect("8 bytes"));
        let mut after = after(before, op);
        if matches!(op, AtomicOp::FetchAdd { add } if add != 0) && self.strikes(Plant::AtomicTwice)
        {
            after = self::after(after, op);
        }
        self.ram.bytes[at..at + 8].copy_from_slice(&after.to_ne_bytes());
        Ok(before)
    }

    fn invalidate(&mut self, rkey: RKey) -> Result<(), MemoryError> {
        if self.ram.regions.contains_key(&rkey.0) {
            return Err(MemoryError::NotInvalidatable(rkey));
        }
        let stays = self.ram.plant == Some(Plant::StaysValid);
        let window = self
            .ram
            .windows
            .iter_mut()
            .find(|window| window.bound.as_ref().is_some_and(|b| b.key == rkey.0))
            .ok_or(MemoryError::InvalidRemoteKey(rkey))?;
        if !window.is_type_2 {
            return Err(MemoryError::NotInvalidatable(rkey));
        }
        if !stays {
            window.bound = None;
        }
        Ok(())
    }

    fn bind(&mut self, bind: &BindWindow) -> Result<(), MemoryError> {
        let refused = |rule| Err(MemoryError::BindRefused(rule));
        let Some(region) = self.ram.regions.get(&bind.region.0) else {
            return Err(MemoryError::InvalidKey(LKey(bind.region.0)));
        };
        if !region.access.contains(AccessFlags::MW_BIND) {
            return refused("the region allows no windows");
        }
        let writes = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
        if bind.access.intersects(writes) && !region.access.contains(AccessFlags::LOCAL_WRITE) {
            return refused("the region cannot be written");
        }
        if region.index(bind.addr, bind.len).is_none() {
            return refused("the range leaves the region");
        }
        let Some(window) = self
            .ram
            .windows
            .iter_mut()
            .find(|window| window.upper == bind.window.0 >> 8)
        else {
            return Err(MemoryError::InvalidRemoteKey(bind.window));
        };
        if window.is_type_2 {
            if window.bound.is_some() {
                return refused("the window is bound");
            }
            if bind.rkey.0 >> 8 != window.upper || bind.len == 0 {
                return refused(
                    "a type 2 window keeps its upper bits, and is not bound to nothing",
                );
            }
        }
        window.upper = bind.rkey.0 >> 8;
        window.bound = (bind.len > 0).then_some(Binding {
            key: bind.rkey.0,
            region: bind.region.0,
            addr: bind.addr,
            len: bind.len,
            access: bind.access,
        });
        Ok(())
    }

    fn select_shared(&mut self, srqn: Srqn) -> bool {
        self.ram.srqs.contains_key(&srqn.get())
    }

    fn take_shared_receive(&mut self, srqn: Option<Srqn>, into: &mut HeldReceive) -> SharedReceive {
        let named = srqn.map(Srqn::get).or(self.srqn);
        match named.and_then(|srqn| self.ram.srqs.get_mut(&srqn)) {
            None => SharedReceive::NoSuchQueue,
            Some(srq) => {
                if srq.take(into) {
                    into.srqn = srqn;
                    SharedReceive::Taken
                } else {
                    SharedReceive::Empty
                }
            }
        }
    }
}

/// What an atomic operation leaves behind.
pub(crate) const fn after(before: u64, op: AtomicOp) -> u64 {
    match op {
        AtomicOp::CompareSwap { compare, swap } if before == compare => swap,
        AtomicOp::CompareSwap { .. } => before,
        AtomicOp::FetchAdd { add } => before.wrapping_add(add),
    }
}

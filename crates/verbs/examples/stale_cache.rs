//! What a cache of registrations does that is not told when memory is freed, beside one that is.
//!
//! A middleware offers messages in place: it registers the memory where a message lies, tells the peer address and key, and the peer
//! fetches the message (READ), or puts its own there (WRITE), when it gets to it. Registering takes time, so registrations are kept
//! in a cache. Then the program frees the message, and the system gives the address to somebody else: a ledger that no peer is
//! to see. The peer is late.
//!
//! With `Naive`, a table of address and length, the key still works: the peer fetches the ledger for the message, and puts its answer
//! into it. With `MrCache` the key has ended with the memory, and the peer is refused. A message that comes to lie at the address
//! again is found by a lookup with either, and is whole.
//!
//! ```text
//! stale_cache     prints what happened with both; exit status 0 if one has corrupted data and the other has not
//! ```

#[path = "../tests/support/pair.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    reason = "shared with the tests: connects queue pairs by hand"
)]
mod pair;

use std::collections::HashMap;
use std::error::Error;
use std::ops::Deref;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use oarlock_hostd::Host;
use oarlock_memwatch::{CacheOptions, KeptHandle, Lookup, MrCache, Registrar};
use oarlock_verbs::{
    Access, Buffer, CompletionQueue, Context, ProgramMemory, ProtectionDomain, QpInitAttr,
    QueuePair, Registered, RemoteAddress, SendRequest, WcStatus,
};

fn main() -> ExitCode {
    let shown = match run() {
        Ok(shown) => shown,
        Err(error) => {
            eprintln!("stale_cache: {error}");
            return ExitCode::from(2);
        }
    };
    for (name, outcome) in [
        ("a table of address and length", &shown.naive),
        ("MrCache", &shown.notified),
    ] {
        println!("{name}:");
        print!("{outcome}");
    }
    let (naive, notified) = (shown.naive.is_corrupt(), shown.notified.is_right());
    println!(
        "stale_cache: naive={} notified={}",
        if naive { "corrupt" } else { "unexpected" },
        if notified { "right" } else { "unexpected" }
    );
    if naive && notified {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// What was seen with each of the two.
pub(crate) struct Shown {
    pub(crate) naive: Outcome,
    pub(crate) notified: Outcome,
}

/// Both, one after the other.
pub(crate) fn run() -> Result<Shown, Box<dyn Error>> {
    let host = Host::private()?;
    let device = Context::devices(&host)?.remove(0);
    let context = Context::open(&host, device.index)?;
    let pd = context.default_pd();
    let naive = Naive::new(&pd);
    let notified = MrCache::new(pd.clone(), CacheOptions::default())?;
    Ok(Shown {
        naive: play(&pd, &naive)?,
        notified: play(&pd, &notified)?,
    })
}

const MESSAGE: &[u8; 24] = b"message 1: forty-two ...";
const LEDGER: &[u8; 24] = b"ledger: pay 100 to Ada..";
const ANSWER: &[u8; 24] = b"ANSWER OF A PEER........";
const SECOND: &[u8; 24] = b"message 2: forty-three..";

/// What the peer was told, and what it saw and did.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// The message, fetched in time.
    in_time: Fetched,
    /// The same, fetched after the memory was the ledger's.
    late: Fetched,
    /// How the peer's answer ended, which it put where it was told.
    answer: WcStatus,
    /// The ledger afterwards.
    ledger: Vec<u8>,
    /// Another message, which lies where the first one lay.
    second: Fetched,
}

#[derive(PartialEq, Eq, Debug)]
struct Fetched {
    status: WcStatus,
    bytes: Vec<u8>,
}

impl Outcome {
    fn is_served(&self) -> bool {
        self.in_time.is(MESSAGE) && self.second.is(SECOND)
    }

    /// The ledger was shown to the peer, and changed by it, and nobody was told.
    pub(crate) fn is_corrupt(&self) -> bool {
        self.is_served()
            && self.late.is(LEDGER)
            && self.answer.is_success()
            && self.ledger == ANSWER
    }

    /// The peer was refused, and the ledger is what it was.
    pub(crate) fn is_right(&self) -> bool {
        self.is_served()
            && self.late.status == WcStatus::REM_ACCESS_ERR
            && self.late.bytes.iter().all(|byte| *byte == 0)
            && self.answer == WcStatus::REM_ACCESS_ERR
            && self.ledger == LEDGER
    }
}

impl Fetched {
    fn is(&self, bytes: &[u8]) -> bool {
        self.status.is_success() && self.bytes == bytes
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(
            f,
            "  the peer fetches the message in time  {}",
            self.in_time
        )?;
        writeln!(
            f,
            "  freed; the address is a ledger's      \"{}\"",
            LEDGER.escape_ascii()
        )?;
        writeln!(f, "  the peer fetches the message late     {}", self.late)?;
        writeln!(f, "  the peer puts its answer there        {}", self.answer)?;
        writeln!(
            f,
            "  the ledger is                         \"{}\"",
            self.ledger.escape_ascii()
        )?;
        writeln!(f, "  another message at the same address   {}", self.second)
    }
}

impl std::fmt::Display for Fetched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.status.is_success() {
            write!(f, "\"{}\"", self.bytes.escape_ascii())
        } else {
            write!(f, "{}", self.status)
        }
    }
}

/// The story, with one of the caches.
fn play(pd: &ProtectionDomain, cache: &impl Cache) -> Result<Outcome, Box<dyn Error>> {
    let message = Pages::at(ADDRESS, MESSAGE)?;
    // Kept, as a middleware keeps it until the peer is done.
    let offered = cache.get(&message)?;
    let there = offered.at(0);
    let in_time = fetch(pd, there)?;

    let address = message.free();
    let ledger = Pages::at(address, LEDGER)?;
    let late = fetch(pd, there)?;
    let answer = put(pd, there, ANSWER)?;
    let ledger_after = ledger.bytes();
    drop(offered);

    let address = ledger.free();
    let second = Pages::at(address, SECOND)?;
    let offered = cache.get(&second)?;
    let second = fetch(pd, offered.at(0))?;
    Ok(Outcome {
        in_time,
        late,
        answer,
        ledger: ledger_after,
        second,
    })
}

/// What a middleware asks for registrations.
trait Cache {
    fn get(
        &self,
        memory: &Pages,
    ) -> Result<Box<dyn Deref<Target = Registered> + '_>, Box<dyn Error>>;
}

/// What peers are to do with messages.
fn rights() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE
}

/// A cache that nobody tells anything.
struct Naive {
    pd: ProtectionDomain,
    known: Mutex<HashMap<(usize, usize), Arc<ProgramMemory>>>,
}

impl Naive {
    fn new(pd: &ProtectionDomain) -> Self {
        Self {
            pd: pd.clone(),
            known: Mutex::default(),
        }
    }
}

struct Shared(Arc<ProgramMemory>);

impl Deref for Shared {
    type Target = Registered;

    fn deref(&self) -> &Registered {
        &self.0
    }
}

impl Cache for Naive {
    fn get(
        &self,
        memory: &Pages,
    ) -> Result<Box<dyn Deref<Target = Registered> + '_>, Box<dyn Error>> {
        let key = (memory.start, memory.len);
        let mut known = self.known.lock().map_err(|_| "another lookup panicked")?;
        if let Some(registration) = known.get(&key) {
            return Ok(Box::new(Shared(Arc::clone(registration))));
        }
        // SAFETY: the pages are reached by copies only. What is wrong here is that they may be gone one day, and this promises that
        // they are not.
        let registration = unsafe { self.pd.register(memory.start, memory.len, rights(), None)? };
        let registration = Arc::new(registration);
        known.insert(key, Arc::clone(&registration));
        Ok(Box::new(Shared(registration)))
    }
}

struct Kept(KeptHandle<ProtectionDomain>);

impl Deref for Kept {
    type Target = Registered;

    fn deref(&self) -> &Registered {
        &self.0
    }
}

impl Cache for MrCache<ProtectionDomain> {
    fn get(
        &self,
        memory: &Pages,
    ) -> Result<Box<dyn Deref<Target = Registered> + '_>, Box<dyn Error>> {
        // SAFETY: the pages are reached by copies only, and when they are gone the registration is.
        let got = unsafe { Self::get(self, memory.start, memory.len, rights(), Lookup::Strict) };
        Ok(Box::new(Kept(got?.keep())))
    }
}

/// Memory as an allocator gets it from the system, with something at its beginning.
struct Pages {
    start: usize,
    len: usize,
}

const LEN: usize = 1 << 16;
/// An address that the system gives to nobody unasked, so that no other thread gets it in between.
const ADDRESS: usize = 0x2000_0000_0000;

impl Pages {
    /// At an address where nothing is mapped.
    fn at(address: usize, content: &[u8]) -> Result<Self, Box<dyn Error>> {
        let open = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: a new mapping where there is none.
        let start = unsafe { libc::mmap(address as *mut _, LEN, open, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error().into());
        }
        let pages = Self {
            start: start as usize,
            len: LEN,
        };
        // SAFETY: mapped just now, longer than the content, and nobody else knows it.
        unsafe { (start.cast::<u8>()).copy_from_nonoverlapping(content.as_ptr(), content.len()) };
        Ok(pages)
    }

    /// A copy of the content.
    fn bytes(&self) -> Vec<u8> {
        let mut out = vec![0; MESSAGE.len()];
        // SAFETY: mapped and readable; the peer's request has completed, so nobody writes.
        unsafe {
            out.as_mut_ptr()
                .copy_from_nonoverlapping(self.start as *const u8, out.len())
        };
        out
    }

    /// Back to the system; where it was.
    fn free(self) -> usize {
        self.start
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: our own mapping, without references to it.
        unsafe { libc::munmap(self.start as *mut _, self.len) };
    }
}

/// The peer: a queue pair for one request, as a refusal ends it; and the one of the middleware at its other end.
struct Peer {
    qp: QueuePair,
    cq: CompletionQueue,
    _other: QueuePair,
}

impl Peer {
    fn new(pd: &ProtectionDomain) -> Result<Self, Box<dyn Error>> {
        let cq = CompletionQueue::new(pd.context(), 16)?;
        let end = || QueuePair::create(pd, &cq, &cq, QpInitAttr::default());
        let (qp, other) = (end()?, end()?);
        pair::connect(&qp, &other);
        Ok(Self {
            qp,
            _other: other,
            cq,
        })
    }
}

fn fetch(pd: &ProtectionDomain, there: RemoteAddress) -> Result<Fetched, Box<dyn Error>> {
    let peer = Peer::new(pd)?;
    let into = Buffer::new(pd, MESSAGE.len())?;
    peer.qp.post_send(SendRequest::read(1, into, there))?;
    let done = peer.cq.wait_one(None)?.ok_or("no completion")?;
    Ok(Fetched {
        status: done.status,
        bytes: done.buffers[0].to_vec(),
    })
}

fn put(
    pd: &ProtectionDomain,
    there: RemoteAddress,
    bytes: &[u8],
) -> Result<WcStatus, Box<dyn Error>> {
    let peer = Peer::new(pd)?;
    let mut from = Buffer::new(pd, bytes.len())?;
    from.copy_from_slice(bytes);
    peer.qp.post_send(SendRequest::write(1, from, there))?;
    let done = peer.cq.wait_one(None)?.ok_or("no completion")?;
    Ok(done.status)
}

//! Requests that are posted together.

use crate::error::ListError;
use crate::qp::QueuePair;
use crate::request::SendRequest;

/// Send requests that are gathered and then posted together, or not at all: the work-request builder.
///
/// Nothing reaches the queue pair before [`complete`](Self::complete), and then no request of another thread comes in
/// between. Dropping a batch posts nothing.
///
/// ```
/// # use oarlock_verbs::*;
/// # mod doctest { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/pair.rs")); }
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let ((a, a_cq), (b, b_cq)) = doctest::connected(QpInitAttr::default());
/// # let memory = RemoteMemory::new(b.pd(), 64, doctest::all_rights())?;
/// # b.post_recv(9, Buffers::new())?;
/// // Data, and a message that tells of it, with one completion for both.
/// let mut batch = a.batch();
/// batch.push(SendRequest::write(1, Inline(b"payload"), memory.at(16)).unsignaled());
/// batch.push(SendRequest::inline(2, b"").imm(16));
/// batch.complete()?;
/// # let mut received = Vec::new();
/// # b_cq.wait(&mut received, None)?;
/// # assert_eq!((received[0].imm, received[0].wr_id), (Some(16), 9));
/// # let mut bytes = [0; 7];
/// # memory.read_at(16, &mut bytes)?;
/// # assert_eq!(&bytes, b"payload");
/// # let mut sent = Vec::new();
/// # a_cq.wait(&mut sent, None)?;
/// # assert_eq!(sent[0].wr_id, 2);
/// # Ok(()) }
/// ```
///
/// The bytes of an inline request are borrowed until then:
///
/// ```compile_fail,E0506
/// # use oarlock_verbs::*;
/// fn change(qp: &QueuePair) {
///     let mut bytes = [1; 8];
///     let mut batch = qp.batch();
///     batch.push(SendRequest::inline(1, &bytes));
///     bytes[0] = 2; // error[E0506]: cannot assign to `bytes[_]` because it is borrowed
///     batch.complete().unwrap();
/// }
/// ```
#[derive(Debug)]
#[must_use]
#[doc(alias = "ibv_qp_ex")]
pub struct Batch<'q, 'a> {
    qp: &'q QueuePair,
    requests: Vec<SendRequest<'a>>,
}

impl<'q, 'a> Batch<'q, 'a> {
    pub(crate) fn new(qp: &'q QueuePair) -> Self {
        Self {
            qp,
            requests: Vec::new(),
        }
    }

    /// Adds a request at the end.
    pub fn push(&mut self, request: SendRequest<'a>) {
        self.requests.push(request);
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Posts all requests, in order; their packets leave together.
    ///
    /// # Errors
    /// Which request is refused and why, as for [`QueuePair::post_send`]: none is posted, and the buffers of all come back.
    ///
    /// # Blocking
    /// Never.
    #[doc(alias = "ibv_wr_complete")]
    pub fn complete(self) -> Result<(), ListError> {
        self.qp.post_all(self.requests)
    }

    /// Posts nothing and gives the requests back.
    #[doc(alias = "ibv_wr_abort")]
    pub fn abort(self) -> Vec<SendRequest<'a>> {
        self.requests
    }
}

// Datagram queue pairs in state RTS.

use oarlock_verbs::{
    AttrMask, CompletionQueue, Error, ProtectionDomain, QpAttr, QpInitAttr, QpState, QpType,
    QueuePair,
};
use oarlock_wire::QKey;

/// What every one of them demands.
pub const KEY: QKey = QKey(0x1111_1111);

/// A queue pair that can send and receive.
pub fn datagrams(pd: &ProtectionDomain, cq: &CompletionQueue) -> Result<QueuePair, Error> {
    let kind = QpInitAttr {
        qp_type: QpType::Ud,
        ..QpInitAttr::default()
    };
    let qp = QueuePair::create(pd, cq, cq, kind)?;
    start(&qp)?;
    Ok(qp)
}

/// From Reset to RTS.
pub fn start(qp: &QueuePair) -> Result<(), Error> {
    let init = AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::QKEY;
    let steps = [
        (QpState::Init, init),
        (QpState::Rtr, AttrMask::empty()),
        (QpState::Rts, AttrMask::SQ_PSN),
    ];
    for (state, mask) in steps {
        qp.modify(&QpAttr {
            mask: mask | AttrMask::STATE,
            state,
            qkey: KEY,
            ..QpAttr::default()
        })?;
    }
    Ok(())
}

//! The limits that a device names are those that it has: as many as it says, and one more is refused by name.

mod support;

use std::sync::Arc;

use oarlock_device::{Access, Cq, Error, Qp, QpInit};
use oarlock_transport::{SendData, SendOp, SendWr, WcStatus};
use support::{collect, connected, content, filled, pair, pattern, recv, whole};

/// As many queue pairs as the device says, each usable, and one more is refused; a dropped one makes room.
#[test]
fn as_many_queue_pairs_as_the_device_has() {
    let (a, b) = pair();
    let max = a.context.device().limits.max_qp as usize;
    let init = || QpInit {
        max_send_wr: 1,
        max_recv_wr: 1,
        ..QpInit::default()
    };
    let mut qps: Vec<Qp> = (0..max).map(|_| a.qp(init())).collect();
    let mut numbers: Vec<_> = qps.iter().map(|qp| qp.qpn().get()).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), max, "each has a number of its own");
    let refused = Qp::new(&a.pd, &a.cq, &a.cq, init()).unwrap_err();
    assert!(
        matches!(refused, Error::TooManyQueuePairs { .. }),
        "{refused}"
    );
    let last = qps.pop().expect("one");
    let peer = b.qp(init());
    support::connect((&a, &last), (&b, &peer));
    let source = filled(&a, &pattern(1, 100));
    let target = b.pd.allocate(100, Access::LOCAL_WRITE).expect("region");
    recv(&peer, 1, &[whole(&target)]);
    support::send(&last, 2, &[whole(&source)]);
    a.collect(1);
    b.collect(1);
    assert!(content(&target) == pattern(1, 100));
    drop(last);
    drop(qps.pop());
    qps.push(a.qp(init()));
    qps.push(a.qp(init()));
    Qp::new(&a.pd, &a.cq, &a.cq, init()).unwrap_err();
    drop(qps);
    assert_eq!(a.context.endpoint().qp_count(), 0);
}

/// A completion queue of one entry takes one completion after the other.
#[test]
fn a_completion_queue_of_one_entry_works() {
    let (a, b) = pair();
    let cq = Arc::new(Cq::new(&a.context, 1, None, 0).expect("cq"));
    let one = Qp::new(&a.pd, &cq, &cq, QpInit::default()).expect("qp");
    let two = b.qp(QpInit::default());
    support::connect((&a, &one), (&b, &two));
    let source = filled(&a, &pattern(2, 10));
    let target = b.pd.allocate(10, Access::LOCAL_WRITE).expect("region");
    for wr_id in 0..100 {
        recv(&two, wr_id, &[whole(&target)]);
        support::send(&one, wr_id, &[whole(&source)]);
        assert_eq!(collect(&cq, 1)[0].completion.wr_id, wr_id);
        b.collect(1);
    }
}

/// As many scatter/gather elements as the device has, of odd lengths and none; one more is refused.
#[test]
fn as_many_elements_as_the_device_has() {
    let (a, b) = pair();
    let max = a.context.device().limits.max_sge;
    let init = || QpInit {
        max_send_sge: max,
        max_recv_sge: max,
        ..QpInit::default()
    };
    let (one, two) = (a.qp(init()), b.qp(init()));
    support::connect((&a, &one), (&b, &two));
    let len = 16_384;
    let bytes = pattern(3, len);
    let source = filled(&a, &bytes);
    let target = filled(&b, &vec![0x5a; len]);
    let cut = |odd: u32| {
        let mut at = 0;
        (0..max).map(move |n| {
            let len = [odd, 0, 1, 331, 2][n as usize % 5];
            let element = (at, len);
            at += u64::from(len);
            element
        })
    };
    let sges = |region: &oarlock_device::Region, odd| -> Vec<_> {
        cut(odd).map(|(at, len)| region.sge(at, len)).collect()
    };
    let sent: u32 = cut(77).map(|(_, len)| len).sum();
    recv(&two, 1, &sges(&target, 1023));
    support::send(&one, 2, &sges(&source, 77));
    a.collect(1);
    assert_eq!(b.collect(1)[0].completion.byte_len, sent);
    let placed = content(&target);
    assert!(placed[..sent as usize] == bytes[..sent as usize]);
    assert!(placed[sent as usize..].iter().all(|byte| *byte == 0x5a));

    let many = vec![source.sge(0, 1); max as usize + 1];
    let wr = SendWr {
        data: SendData::Sges(&many),
        ..SendWr::default()
    };
    one.post_send(&wr).unwrap_err();
    let more = QpInit {
        max_send_sge: max + 1,
        ..QpInit::default()
    };
    let refused = Qp::new(&a.pd, &a.cq, &a.cq, more).unwrap_err();
    assert!(matches!(refused, Error::OutOfRange { .. }), "{refused}");
}

/// A message has up to 2^31 bytes: one more is refused when it is posted, wherever the bytes come from.
#[test]
fn a_message_has_no_more_than_2_to_the_31_bytes() {
    let (a, b) = pair();
    let (one, _two) = connected(&a, &b);
    let region = filled(&a, &[0; 8]);
    let half = oarlock_transport::Sge {
        len: 1 << 30,
        ..region.sge(0, 8)
    };
    let one_more = [half, half, region.sge(0, 1)];
    for op in [
        SendOp::Send,
        SendOp::Write(Default::default()),
        SendOp::Read(Default::default()),
    ] {
        let wr = SendWr {
            op,
            data: SendData::Sges(&one_more),
            ..SendWr::default()
        };
        one.post_send(&wr).unwrap_err();
    }
    assert_eq!(one.state(), oarlock_transport::QpState::Rts);
    // The rule is about the length: what is allowed is found to leave its region when it is sent.
    let wr = SendWr {
        wr_id: 4,
        data: SendData::Sges(&[half, half]),
        ..SendWr::default()
    };
    one.post_send(&wr).expect("posted");
    let ended = a.collect_any(1).remove(0).completion;
    assert_eq!((ended.wr_id, ended.status), (4, WcStatus::LOC_PROT_ERR));
}

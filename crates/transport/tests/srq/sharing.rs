//! UC and UD queue pairs that take their buffers out of one queue.

use oarlock_transport::{
    AttrMask, Completion, MAX_PACKET_LEN, QpAttr, QpEvent, QpState, QpType, RecvWr, SendData,
    SendWr, Sge, Srq, SrqConfig, Uc, UcConfig, Ud, UdConfig, UdDestination, WcStatus,
};
use oarlock_wire::{AddressVector, Gid, Grh, Mtu, Psn, QKey, Qpn, Time};

use crate::memory::VecMemory;

const KEY: QKey = QKey(0x1234);

fn gid(host: u8) -> Gid {
    Gid::from_ip([10, 0, 0, host].into())
}

fn attr(own: u32, peer: u32) -> QpAttr {
    let host = |qpn: u32| gid((qpn >> 8) as u8);
    QpAttr {
        av: AddressVector::new(host(own), host(peer)),
        path_mtu: Mtu::MTU_256,
        dest_qpn: Qpn::truncate(peer),
        qkey: KEY,
        rq_psn: Psn::truncate(peer),
        sq_psn: Psn::truncate(own),
        ..QpAttr::default()
    }
}

fn steps(qp_type: QpType, attr: QpAttr, mut modify: impl FnMut(&QpAttr)) {
    let path = [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts];
    for step in path.windows(2) {
        let row = qp_type.transition(step[0], step[1]).expect("a step");
        modify(&QpAttr {
            mask: row.required | AttrMask::STATE,
            state: step[1],
            ..attr
        });
    }
}

fn uc(own: u32, peer: u32, shared_receives: bool) -> Uc {
    let mut uc = Uc::new(UcConfig {
        qpn: Qpn::truncate(own),
        shared_receives,
        ..UcConfig::default()
    });
    steps(QpType::Uc, attr(own, peer), |attr| uc.modify(attr).unwrap());
    uc
}

fn ud(own: u32, shared_receives: bool) -> Ud {
    let mut ud = Ud::new(UdConfig {
        qpn: Qpn::truncate(own),
        mtu: Mtu::MTU_256,
        shared_receives,
        ..UdConfig::default()
    });
    steps(QpType::Ud, attr(own, 0), |attr| ud.modify(attr).unwrap());
    ud
}

/// The receiving host: three queue pairs of two services, and one queue.
struct Receiver {
    ucs: [Uc; 2],
    ud: Ud,
    memory: VecMemory,
}

impl Receiver {
    fn new(buffers: u64, len: usize) -> Self {
        let mut memory = VecMemory::new(1 << 16);
        let mut srq = Srq::new(SrqConfig::default());
        for wr_id in 0..buffers {
            let sges = [memory.alloc(len)];
            srq.post_recv(&RecvWr { wr_id, sges: &sges }).unwrap();
        }
        memory.srq = Some(srq);
        Self {
            ucs: [uc(0x201, 0x101, true), uc(0x202, 0x102, true)],
            ud: ud(0x203, true),
            memory,
        }
    }

    fn srq(&mut self) -> &mut Srq {
        self.memory.srq.as_mut().expect("there is one")
    }
}

/// The packets of one message over UC.
fn uc_packets(uc: &mut Uc, data: &[u8]) -> Vec<(AddressVector, Vec<u8>)> {
    let mut memory = VecMemory::new(data.len());
    let sges = [memory.store(data)];
    uc.post_send(&SendWr {
        data: SendData::Sges(&sges),
        ..SendWr::default()
    })
    .unwrap();
    let mut out = [0; MAX_PACKET_LEN];
    std::iter::from_fn(|| {
        let sent = uc.poll_transmit(Time::ZERO, &mut memory, &mut out)?;
        Some((sent.av.reversed(), out[..sent.len].to_vec()))
    })
    .collect()
}

fn datagram(ud: &mut Ud, data: &[u8]) -> (AddressVector, Vec<u8>) {
    ud.post_send(&SendWr {
        data: SendData::Inline(data),
        ud: Some(UdDestination {
            av: AddressVector::new(gid(1), gid(2)),
            remote_qpn: Qpn::truncate(0x203),
            remote_qkey: KEY,
        }),
        ..SendWr::default()
    })
    .unwrap();
    let mut out = [0; MAX_PACKET_LEN];
    let mut memory = VecMemory::new(0);
    let sent = ud.poll_transmit(&mut memory, &mut out).unwrap();
    (sent.av.reversed(), out[..sent.len].to_vec())
}

fn completions(mut next: impl FnMut() -> Option<Completion>) -> Vec<(u64, WcStatus)> {
    std::iter::from_fn(|| next().map(|c| (c.wr_id, c.status))).collect()
}

/// Messages that arrive interleaved hold one buffer each, in the order in which they began.
#[test]
fn interleaved_messages_of_several_queue_pairs_take_one_buffer_each() {
    let mut receiver = Receiver::new(3, 600);
    receiver.srq().set_limit(1).unwrap();
    let (mut a, mut b, mut c) = (
        uc(0x101, 0x201, false),
        uc(0x102, 0x202, false),
        ud(0x103, false),
    );
    let long_a = [0xA; 500];
    let long_b = [0xB; 300];
    let packets_a = uc_packets(&mut a, &long_a);
    let packets_b = uc_packets(&mut b, &long_b);
    assert_eq!((packets_a.len(), packets_b.len()), (2, 2));
    let (now, memory) = (Time::ZERO, &mut receiver.memory);
    let take = |uc: &mut Uc, (from, bytes): &(AddressVector, Vec<u8>), memory: &mut VecMemory| {
        uc.handle_datagram(now, from, bytes, memory);
    };
    take(&mut receiver.ucs[0], &packets_a[0], memory);
    take(&mut receiver.ucs[1], &packets_b[0], memory);
    assert!(!memory.srq.as_mut().unwrap().poll_limit_reached());
    let (from, bytes) = datagram(&mut c, b"hi");
    receiver.ud.handle_datagram(&from, &bytes, memory);
    assert!(memory.srq.as_mut().unwrap().poll_limit_reached());
    take(&mut receiver.ucs[1], &packets_b[1], memory);
    take(&mut receiver.ucs[0], &packets_a[1], memory);
    let ok = WcStatus::SUCCESS;
    assert_eq!(completions(|| receiver.ucs[0].poll_completion()), [(0, ok)]);
    assert_eq!(completions(|| receiver.ucs[1].poll_completion()), [(1, ok)]);
    assert_eq!(completions(|| receiver.ud.poll_completion()), [(2, ok)]);
    let at = |n: u64| Sge {
        addr: 0x7f00_0000_1000 + n * 600,
        len: 600,
        ..Sge::default()
    };
    assert_eq!(receiver.memory.load(at(0), 500), long_a);
    assert_eq!(receiver.memory.load(at(1), 300), long_b);
    assert_eq!(
        receiver.memory.load(at(2), Grh::LEN + 2)[Grh::LEN..],
        *b"hi"
    );
    let (from, bytes) = datagram(&mut c, b"no buffer");
    receiver
        .ud
        .handle_datagram(&from, &bytes, &mut receiver.memory);
    assert_eq!(completions(|| receiver.ud.poll_completion()), []);
}

/// A datagram that does not fit costs a shared buffer, which cannot go back, and nothing else.
#[test]
fn a_datagram_that_is_too_long_fails_its_shared_buffer() {
    let mut receiver = Receiver::new(2, Grh::LEN + 3);
    let mut sender = ud(0x103, false);
    for data in [b"four" as &[u8], b"fit"] {
        let (from, bytes) = datagram(&mut sender, data);
        receiver
            .ud
            .handle_datagram(&from, &bytes, &mut receiver.memory);
    }
    let expected = [(0, WcStatus::LOC_LEN_ERR), (1, WcStatus::SUCCESS)];
    assert_eq!(completions(|| receiver.ud.poll_completion()), expected);
    assert_eq!(receiver.ud.state(), QpState::Rts);
}

#[test]
fn a_datagram_queue_pair_says_when_it_takes_no_more() {
    let mut receiver = Receiver::new(1, 100);
    let answer = receiver.ud.post_recv(&RecvWr::default());
    assert!(answer.is_err(), "it has no queue of its own");
    for _ in 0..2 {
        receiver
            .ud
            .modify(&QpAttr::to_state(QpState::Error))
            .unwrap();
    }
    assert!(receiver.ud.has_output());
    assert_eq!(receiver.ud.poll_event(), Some(QpEvent::LastWqeReached));
    assert_eq!(receiver.ud.poll_event(), None);
    assert_eq!(receiver.srq().len(), 1, "what waits stays for the others");
}

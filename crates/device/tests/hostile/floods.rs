//! Small packets that ask for much.

use std::ffi::c_void;
use std::ptr;

use oarlock_device::{Access, QpInit, Region};
use oarlock_transport::{
    Counter, QpAttr, QpState, QpType, RemoteAddress, SendData, SendOp, SendWr, WcStatus,
};
use oarlock_wire::{Mtu, RKey};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::forger::{RC_READ_RESPONSES, Scene, acknowledge, of_type, read_request};
use crate::support::ends::Link;
use crate::support::{content, eventually, filled, pattern, recv, send, whole};

/// As long as one READ may be, and in as many packets as possible.
const LEN: u32 = 1 << 31;
const PACKETS: u64 = 1 << 23;
pub(crate) const PSN: u32 = 0x10;

fn link() -> Link {
    Link {
        mtu: Mtu::MTU_256,
        first_psn: PSN,
        reads: 16,
        ..Link::default()
    }
}

/// A region of pages that exist when somebody writes to them.
pub(crate) struct Sparse {
    start: *mut c_void,
    region: Option<Region>,
}

impl Sparse {
    pub(crate) fn new(scene: &Scene) -> Self {
        let (rights, flags) = (ProtFlags::READ, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a new mapping, to which no references are made.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), LEN as usize, rights, flags) };
        let start = start.expect("2 GiB of addresses");
        let access = Access::REMOTE_READ | Access::ON_DEMAND;
        // SAFETY: as above; it stays mapped as long as it is registered.
        let region = unsafe { scene.victim.pd.register(start as u64, LEN as usize, access) };
        Self {
            start,
            region: Some(region.expect("region")),
        }
    }

    /// Its address and key.
    pub(crate) fn place(&self) -> (u64, RKey) {
        let region = self.region.as_ref().expect("until it is dropped");
        (region.iova(), region.rkey())
    }
}

impl Drop for Sparse {
    fn drop(&mut self) {
        self.region = None;
        // SAFETY: mapped in `new`, registered no more, and there are no references.
        unsafe { munmap(self.start, LEN as usize) }.expect("munmap");
    }
}

/// A message each way between the device under attack and an honest one.
fn messages_pass(scene: &Scene, qps: &(oarlock_device::Qp, oarlock_device::Qp), round: usize) {
    let bytes = pattern(round, 3000);
    let ends = [
        (&scene.victim, &qps.0, &scene.honest, &qps.1),
        (&scene.honest, &qps.1, &scene.victim, &qps.0),
    ];
    for (from, sender, to, receiver) in ends {
        let source = filled(from, &bytes);
        let target = to.pd.allocate(3000, Access::LOCAL_WRITE).expect("region");
        recv(receiver, 1, &[whole(&target)]);
        send(sender, 2, &[whole(&source)]);
        from.collect(1);
        to.collect(1);
        assert!(content(&target) == bytes, "round {round}");
    }
}

/// One packet of 28 bytes asks for 2^31 bytes. While they are sent, other queue pairs work, and the one that sends them can
/// be asked, changed and ended: nobody waits for the last byte.
#[test]
fn a_long_read_keeps_nobody_waiting() {
    for end in [QpState::Error, QpState::Reset] {
        let scene = Scene::new();
        let sparse = Sparse::new(&scene);
        let others = scene.bystanders();
        let prey = scene.prey(of_type(QpType::Rc), &link());
        let from = sparse.place();
        scene
            .forger
            .send(&scene.victim, &read_request(prey.qpn(), PSN, from, LEN));
        eventually("the first data", || {
            prey.counters().get(Counter::ReadResponsesSent) > 0
        });
        for round in 0..10 {
            messages_pass(&scene, &others, round);
        }
        prey.modify(&QpAttr::to_state(end)).expect("modify");
        let sent = prey.counters().get(Counter::ReadResponsesSent);
        assert!(sent < PACKETS, "{end}: nothing came between");
        assert!(scene.victim.counter("turns") > 0);
        // It is the end of the data, too.
        messages_pass(&scene, &others, 10);
        assert_eq!(prey.counters().get(Counter::ReadResponsesSent), sent);
    }
}

/// As many READs as may be outstanding, and each of them again and again: what waits is bounded, and the queue pair can be
/// dropped.
#[test]
fn many_long_reads_end_with_their_queue_pair() {
    let scene = Scene::new();
    let sparse = Sparse::new(&scene);
    let others = scene.bystanders();
    let prey: Vec<_> = (0..8)
        .map(|_| scene.prey(of_type(QpType::Rc), &link()))
        .collect();
    let from = sparse.place();
    // Of a length of which 16 fit into half of the PSNs.
    let len = LEN / 32;
    let step = len / 256;
    for repetition in 0..20 {
        for qp in &prey {
            for n in 0..16 {
                let psn = PSN + n * step;
                let request = read_request(qp.qpn(), psn, from, len);
                scene.forger.send(&scene.victim, &request);
            }
        }
        messages_pass(&scene, &others, repetition);
    }
    for qp in &prey {
        assert_eq!(qp.state(), QpState::Rts);
        assert_eq!(qp.counters().get(Counter::ReadsReceived), 16);
    }
    drop(prey);
    messages_pass(&scene, &others, 20);
    let mut round = 21;
    eventually("a round in which nobody waits for a turn", || {
        let before = scene.victim.counter("turns");
        messages_pass(&scene, &others, round);
        round += 1;
        scene.victim.counter("turns") == before
    });
    assert_eq!(scene.victim.context.endpoint().qp_count(), 1);
}

/// The turns of two queue pairs alternate, and each gives its data whole and in order.
#[test]
fn long_reads_share_the_time() {
    let mut scene = Scene::new();
    let sparse = Sparse::new(&scene);
    let (one, two) = (
        scene.prey(of_type(QpType::Rc), &link()),
        scene.prey(of_type(QpType::Rc), &link()),
    );
    let from = sparse.place();
    let packets = 20_000;
    for qp in [&one, &two] {
        let request = read_request(qp.qpn(), PSN, from, packets * 256);
        scene.forger.send(&scene.victim, &request);
    }
    let mut last_of = 0;
    let mut count = 0_u64;
    eventually("all data", || {
        for (opcode, _) in scene.forger.heard() {
            assert!(RC_READ_RESPONSES.contains(&opcode), "{opcode:#x}");
            count += 1;
        }
        let sent = [&one, &two].map(|qp| qp.counters().get(Counter::ReadResponsesSent));
        if sent[0] > 0 && sent[1] > 0 && sent != [u64::from(packets); 2] {
            last_of += 1;
        }
        sent == [u64::from(packets); 2]
    });
    assert!(last_of > 0, "one after the other");
    assert!(count <= 2 * u64::from(packets));
    assert_eq!(scene.victim.counter("send_failed"), 0);
}

/// A peer that is never ready, and says so at once each time: a request is repeated as often as it may be, and the times
/// at which something is due do not pile up behind it.
#[test]
fn a_storm_of_refusals_is_counted_and_costs_no_memory() {
    let scene = Scene::new();
    let others = scene.bystanders();
    // Waits for ever for an acknowledgement, as far as a test can tell.
    let link = Link {
        timeout: 31,
        first_psn: PSN,
        ..Link::default()
    };
    let prey = scene.prey(QpInit::default(), &link);
    let source = filled(&scene.victim, &pattern(1, 64));
    send(&prey, 9, &[whole(&source)]);
    let shortest = 0b001_00001;
    let mut storms = 0;
    eventually("refusals", || {
        for _ in 0..50 {
            let nak = acknowledge(prey.qpn(), PSN, shortest, 0);
            scene.forger.send(&scene.victim, &nak);
        }
        storms += 1;
        prey.counters().get(Counter::RnrNaksReceived) >= 200
    });
    messages_pass(&scene, &others, storms);
    let fatal = acknowledge(prey.qpn(), PSN, 0b011_00001, 0);
    let mut ended = None;
    eventually("the end", || {
        scene.forger.send(&scene.victim, &fatal);
        let mut out = [const { None }];
        scene.victim.cq.poll(&mut out).expect("poll");
        ended = out[0].take();
        ended.is_some()
    });
    let ended = ended.expect("just seen").completion;
    assert_eq!(
        (ended.wr_id, ended.status),
        (9, WcStatus::REM_INV_REQ_ERR),
        "the peer's verdict"
    );
}

/// Acknowledgements that promise any number of buffers, count any number of messages, and answer what was never sent: a
/// request that the peer acknowledges completes, and the next one leaves.
#[test]
fn absurd_acknowledgements_stop_nothing() {
    let scene = Scene::new();
    let link = Link {
        first_psn: 0xff_fff0,
        ..Link::default()
    };
    let prey = scene.prey(QpInit::default(), &link);
    let source = filled(&scene.victim, &pattern(1, 64));
    let messages = [0, 1, 0x7f_ffff, 0x80_0000, 0xff_fffe, 0xff_ffff];
    let mut psn = 0xff_fff0_u32;
    for credits in 0..32 {
        for msn in messages {
            send(&prey, 5, &[whole(&source)]);
            for beyond in [1, 2, 0x7f_ffff, 0x80_0000, 0xff_ffff] {
                let wrong = acknowledge(prey.qpn(), psn + beyond, credits, msn);
                scene.forger.send(&scene.victim, &wrong);
            }
            let right = acknowledge(prey.qpn(), psn, credits, msn);
            scene.forger.send(&scene.victim, &right);
            let done = scene.victim.collect(1).remove(0).completion;
            assert_eq!(done.wr_id, 5, "credits {credits}, messages {msn}");
            psn += 1;
        }
    }
    assert_eq!(prey.state(), QpState::Rts);
    assert_eq!(prey.counters().get(Counter::SendsCompleted), 32 * 6);
}

/// A reserved opcode is a request that is not served, where requests are answered, and no packet anywhere else.
#[test]
fn reserved_opcodes_are_invalid_requests() {
    let scene = Scene::new();
    let mut ended = 0;
    for operation in [0x15, 0x18, 0x1f] {
        for (class, qp_type) in [
            (0_u8, QpType::Rc),
            (1, QpType::Uc),
            (0, QpType::XrcInitiator),
        ] {
            let prey = scene.prey(of_type(qp_type), &link());
            let before = scene.victim.counter("malformed");
            let packet = crate::forger::bth(class << 5 | operation, prey.qpn(), PSN, true);
            scene.forger.send(&scene.victim, &packet);
            if qp_type == QpType::Rc {
                eventually("the end", || prey.state() == QpState::Error);
                let sent = prey.counters().get(Counter::InvalidRequestNaksSent);
                assert_eq!(sent, 1, "{operation:#x}");
                ended += 1;
            } else {
                eventually("the count", || scene.victim.counter("malformed") > before);
                assert_eq!(prey.state(), QpState::Rts);
            }
        }
    }
    assert_eq!(ended, 3);
}

/// What answers a READ in another order, of another length or with a negative syndrome ends the request, and nothing is
/// placed beside its buffer.
#[test]
fn wrong_answers_to_a_read_stay_in_its_buffer() {
    let scene = Scene::new();
    for (opcode, syndrome, len) in [
        (0x0d, 0x1f, 256),
        (0x0e, 0x1f, 256),
        (0x0f, 0x1f, 256),
        (0x10, 0x1f, 4096),
        (0x10, 0x1f, 0),
        (0x10, 0x1f, 104),
        (0x10, 0x61, 100),
        (0x10, 0x21, 100),
        (0x12, 0x1f, 8),
    ] {
        let prey = scene.prey(of_type(QpType::Rc), &link());
        let target = filled(&scene.victim, &[0x5a; 300]);
        prey.post_send(&SendWr {
            wr_id: 3,
            op: SendOp::Read(RemoteAddress::default()),
            data: SendData::Sges(&[target.sge(100, 100)]),
            ..SendWr::default()
        })
        .expect("post_send");
        let mut answer = crate::forger::bth(opcode, prey.qpn(), PSN, false);
        if opcode != 0x0e {
            answer.extend([syndrome, 0, 0, 1]);
        }
        answer.extend(vec![0xee; len]);
        scene.forger.send(&scene.victim, &answer);
        let done = scene.victim.collect_any(1).remove(0).completion;
        assert_eq!(
            done.status,
            WcStatus::BAD_RESP_ERR,
            "{opcode:#x} {syndrome:#x} {len}"
        );
        let left = content(&target);
        assert!(left.iter().all(|byte| *byte == 0x5a), "{opcode:#x} {len}");
    }
}

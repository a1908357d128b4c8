//! A connected RC queue pair under any packets, work requests and clock: nothing panics, memory is never left, and after the error
//! state every work request has completed exactly once.
#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use oarlock_transport::{
    AttrMask, Memory, MemoryError, PacketBuf, QpAttr, QpState, Rc, RcConfig, RecvWr, SendData,
    SendOp, SendWr, Sge,
};
use oarlock_wire::Time;
use oarlock_wire::units::{AddressVector, Gid, IbTimeout, Mtu, Psn, Qpn, RetryCount};

struct Bytes(Vec<u8>);

impl Memory for Bytes {
    fn scatter(&mut self, sges: &[Sge], offset: u64, data: &[u8]) -> Result<(), MemoryError> {
        let all: u64 = sges.iter().map(|sge| u64::from(sge.len)).sum();
        assert!(
            offset + data.len() as u64 <= all,
            "the engine leaves the buffers"
        );
        self.0.clear();
        self.0.extend_from_slice(data);
        Ok(())
    }

    fn gather(&mut self, sges: &[Sge], offset: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        let all: u64 = sges.iter().map(|sge| u64::from(sge.len)).sum();
        assert!(
            offset + out.len() as u64 <= all,
            "the engine leaves the buffers"
        );
        out.fill(0x5a);
        Ok(())
    }
}

fuzz_target!(|data: &[u8]| {
    let gid = |n| Gid::from_ip(std::net::IpAddr::from([10, 0, 0, n]));
    let (qpn, peer) = (
        Qpn::new(0x0001_0011).expect("24 bits"),
        Qpn::new(0x0002_0022).expect("24 bits"),
    );
    let mut rc = Rc::new(RcConfig {
        qpn,
        max_send_wr: 16,
        max_recv_wr: 16,
        ..RcConfig::default()
    });
    let attr = QpAttr {
        av: AddressVector::new(gid(1), gid(2)),
        path_mtu: Mtu::MTU_256,
        dest_qpn: peer,
        rq_psn: Psn::new(0xff_fffe).expect("24 bits"),
        sq_psn: Psn::new(0xff_fff0).expect("24 bits"),
        min_rnr_timer: 12,
        timeout: IbTimeout::new(14).expect("5 bits"),
        retry_count: RetryCount::new(3).expect("3 bits"),
        rnr_retry: RetryCount::new(3).expect("3 bits"),
        ..QpAttr::default()
    };
    let init = AttrMask::STATE | AttrMask::ACCESS_FLAGS | AttrMask::PKEY_INDEX | AttrMask::PORT;
    let rtr = AttrMask::STATE
        | AttrMask::AV
        | AttrMask::PATH_MTU
        | AttrMask::DEST_QPN
        | AttrMask::RQ_PSN
        | AttrMask::MAX_DEST_RD_ATOMIC
        | AttrMask::MIN_RNR_TIMER;
    let rts = AttrMask::STATE
        | AttrMask::SQ_PSN
        | AttrMask::TIMEOUT
        | AttrMask::RETRY_CNT
        | AttrMask::RNR_RETRY
        | AttrMask::MAX_QP_RD_ATOMIC;
    for (state, mask) in [
        (QpState::Init, init),
        (QpState::Rtr, rtr),
        (QpState::Rts, rts),
    ] {
        rc.modify(&QpAttr {
            state,
            mask,
            ..attr
        })
        .expect("a recipe that holds");
    }
    let mut memory = Bytes(Vec::new());
    let mut out: PacketBuf = [0; size_of::<PacketBuf>()];
    let from = AddressVector::new(gid(1), gid(2));
    let (mut now, mut posted, mut completed) = (Time::ZERO, 0u64, 0u64);
    let mut rest = data;
    while let Some((&op, tail)) = rest.split_first() {
        rest = tail;
        let sge = [Sge {
            addr: 0,
            len: u32::from(op) * 8,
            ..Sge::default()
        }];
        match op % 6 {
            0 => {
                posted += u64::from(
                    rc.post_recv(&RecvWr {
                        wr_id: posted,
                        sges: &sge,
                    })
                    .is_ok(),
                )
            }
            1 => {
                let wr = SendWr {
                    wr_id: posted,
                    op: SendOp::SendWithImm(7),
                    data: SendData::Sges(&sge),
                    ..SendWr::default()
                };
                posted += u64::from(rc.post_send(&wr).is_ok());
            }
            2 => {
                now = now + Duration::from_millis(u64::from(op));
                rc.handle_timeout(now);
            }
            _ => {
                let (len, tail) = rest
                    .split_first()
                    .map_or((0, rest), |(&n, t)| (usize::from(n) * 2, t));
                let (packet, tail) = tail.split_at(len.min(tail.len()));
                rest = tail;
                let mut packet = packet.to_vec();
                // Most packets are addressed well and near the expected PSNs, so that the checks behind are reached.
                if packet.len() >= 12 && packet[1] & 1 == 0 {
                    packet[1] &= 0xf0;
                    packet[2..4].copy_from_slice(&[0xff, 0xff]);
                    packet[5..8].copy_from_slice(&qpn.get().to_be_bytes()[1..]);
                    let near = if packet[0] & 0x1f == 0x11 {
                        0xff_fff0
                    } else {
                        0xff_fffe
                    };
                    let psn = (near + u32::from(packet[11] & 7)) & 0xff_ffff;
                    packet[9..12].copy_from_slice(&psn.to_be_bytes()[1..]);
                }
                rc.handle_datagram(now, &from, &packet, &mut memory);
            }
        }
        for _ in 0..256 {
            if rc.poll_transmit(now, &mut memory, &mut out).is_none() {
                break;
            }
        }
        while rc.poll_completion().is_some() {
            completed += 1;
        }
        while rc.poll_event().is_some() {}
    }
    rc.modify(&QpAttr::to_state(QpState::Error))
        .expect("allowed from any state");
    while rc.poll_transmit(now, &mut memory, &mut out).is_some() {}
    while rc.poll_completion().is_some() {
        completed += 1;
    }
    assert_eq!(
        completed, posted,
        "each work request completes exactly once"
    );
});

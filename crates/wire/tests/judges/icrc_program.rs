//! `interop/check_icrc.py`, which shares nothing with this crate, judges the ICRCs that we compute, and is judged itself.

use crate::support::{
    Order, Random, V6_DESTINATION, V6_SOURCE, bare, fixture, ip_packet, transport_offset,
    write_pcap,
};
use oarlock_sim::not_run;
use oarlock_wire::icrc::{DONT_FRAGMENT, icrc_ipv4, icrc_ipv6};
use oarlock_wire::{Bth, Deth, ImmDt, Opcode, PacketHeader, Psn, QKey, Qpn, ROCE_PORT};
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;

/// What the program prints and its exit status, or `None` where there is no Python.
pub(crate) fn judge(pcap: &Path) -> Option<(String, Option<i32>)> {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../interop/check_icrc.py");
    match Command::new("python3").arg(program).arg(pcap).output() {
        Ok(output) => {
            let printed = String::from_utf8(output.stdout).expect("text");
            Some((printed.trim_end().to_owned(), output.status.code()))
        }
        Err(error) => {
            not_run(
                "programs",
                format_args!("interop/check_icrc.py: python3: {error}"),
            );
            None
        }
    }
}

/// RoCEv2 packets of our making: each size class, IPv4 with several identifications, and IPv6.
fn packets() -> Vec<Vec<u8>> {
    let mut random = Random::seeded();
    let mut packets = Vec::new();
    for len in [0, 1, 2, 3, 4, 64, 255, 1024, 1400] {
        let mut payload = vec![0; len];
        random.fill(&mut payload);
        let mut bth = Bth::new(
            Opcode::UD_SEND_ONLY_IMM,
            Qpn::truncate(0x11),
            Psn::truncate(0xFF_FFFE),
        );
        // A switch may set these: the ICRC does not cover them.
        (bth.fecn, bth.becn) = (len % 2 == 1, len % 3 == 1);
        let deth = Deth {
            qkey: QKey::RDMA_UDP,
            src_qpn: Qpn::MULTICAST,
        };
        let header = PacketHeader::new(bth)
            .with_deth(deth)
            .with_immdt(ImmDt(0xDEAD_BEEF));
        let mut bytes = [0; 1500];
        let end = header
            .emit_packet(&payload, &mut bytes)
            .expect("there is room");
        let (head, tail) = bytes[..end].split_at(10);
        let pieces = [head, tail];

        let [v4_source, v4_destination] =
            [Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(198, 51, 100, 7)];
        for identification in [0, 1, 0xABCD] {
            let icrc = icrc_ipv4(
                v4_source,
                v4_destination,
                0xC001,
                ROCE_PORT,
                identification,
                DONT_FRAGMENT,
                &pieces,
            );
            let transport = &bytes[..end];
            packets.push(ip_packet(
                v4_source.into(),
                v4_destination.into(),
                0xC001,
                identification,
                transport,
                icrc,
            ));
        }
        let icrc = icrc_ipv6(V6_SOURCE, V6_DESTINATION, 0xC002, ROCE_PORT, &pieces);
        packets.push(ip_packet(
            V6_SOURCE.into(),
            V6_DESTINATION.into(),
            0xC002,
            0,
            &bytes[..end],
            icrc,
        ));
    }
    packets
}

fn ethertype(packet: &[u8]) -> [u8; 2] {
    if packet[0] >> 4 == 4 {
        [0x08, 0x00]
    } else {
        [0x86, 0xDD]
    }
}

fn ethernet(packet: &[u8]) -> Vec<u8> {
    [[2; 12].as_slice(), &ethertype(packet)].concat()
}

fn ethernet_with_vlan(packet: &[u8]) -> Vec<u8> {
    [
        [2; 12].as_slice(),
        &[0x81, 0x00, 0x00, 0x05],
        &ethertype(packet),
    ]
    .concat()
}

fn cooked(packet: &[u8]) -> Vec<u8> {
    [[0; 14].as_slice(), &ethertype(packet)].concat()
}

fn cooked_2(packet: &[u8]) -> Vec<u8> {
    [ethertype(packet).as_slice(), &[0; 18]].concat()
}

fn loopback(_packet: &[u8]) -> Vec<u8> {
    vec![2, 0, 0, 0]
}

#[test]
fn our_icrcs_are_right_over_ipv4_and_ipv6_behind_every_link_header() {
    type LinkHeader = fn(&[u8]) -> Vec<u8>;
    let links: [(u32, LinkHeader); 7] = [
        (101, bare),
        (1, ethernet),
        (1, ethernet_with_vlan),
        (113, cooked),
        (276, cooked_2),
        (0, loopback),
        (108, loopback),
    ];
    let packets = packets();
    for (index, (link_type, link_header)) in links.into_iter().enumerate() {
        for order in [Order::Little, Order::Big] {
            let name = format!("icrc-link-{index}-{order:?}.pcap");
            let pcap = write_pcap(&name, order, link_type, link_header, &packets);
            let Some(verdict) = judge(&pcap) else { return };
            assert_eq!(
                verdict,
                ("icrc ok=36 bad=0 other=0".to_owned(), Some(0)),
                "{name}"
            );
        }
    }
}

#[test]
fn the_program_finds_the_icrcs_between_two_kernels_right() {
    for (name, verdict) in [
        ("wire-cm-mads.pcap", "icrc ok=1042 bad=0 other=0"),
        ("wire-mckey.pcap", "icrc ok=13 bad=0 other=28"),
        ("wire-mra.pcap", "icrc ok=13 bad=0 other=0"),
        ("wire-rping.pcap", "icrc ok=130 bad=0 other=18"),
        ("wire-udaddy.pcap", "icrc ok=24 bad=0 other=0"),
    ] {
        let Some(found) = judge(&fixture(name)) else {
            return;
        };
        assert_eq!(found, (verdict.to_owned(), Some(0)), "{name}");
    }
}

#[test]
fn the_program_turns_red_for_one_flipped_bit() {
    let good = packets();
    for (index, packet) in [(5, "IPv4"), (7, "IPv6")] {
        let end = good[index].len();
        let transport = transport_offset(&good[index]);
        for (what, byte, bit) in [
            ("ICRC", end - 1, 0x01),
            ("ICRC", end - 4, 0x80),
            ("PSN", transport + 11, 0x01),
            ("payload", end - 8, 0x10),
            ("source address", transport - 8 - 5, 0x01),
        ] {
            let mut packets = good.clone();
            packets[index][byte] ^= bit;
            let pcap = write_pcap("icrc-flipped.pcap", Order::Little, 101, bare, &packets);
            let Some(verdict) = judge(&pcap) else { return };
            assert_eq!(
                verdict,
                ("icrc ok=35 bad=1 other=0".to_owned(), Some(1)),
                "{packet}, {what}"
            );
        }
        // What may change on the way is not covered.
        let mut packets = good.clone();
        packets[index][transport + 4] ^= 0xC0;
        packets[index][transport - 1] ^= 0xFF;
        let pcap = write_pcap("icrc-masked.pcap", Order::Little, 101, bare, &packets);
        let Some(verdict) = judge(&pcap) else { return };
        assert_eq!(
            verdict,
            ("icrc ok=36 bad=0 other=0".to_owned(), Some(0)),
            "{packet}, masked"
        );
    }
}

#[test]
fn the_program_does_not_pass_a_capture_without_anything_to_judge() {
    let pcap = write_pcap("icrc-empty.pcap", Order::Little, 101, bare, &[]);
    let Some(verdict) = judge(&pcap) else { return };
    assert_eq!(verdict, ("icrc ok=0 bad=0 other=0".to_owned(), Some(1)));
    let not_ours = vec![vec![0x45; 40], vec![0x60; 60], vec![1]];
    let pcap = write_pcap("icrc-other.pcap", Order::Big, 101, bare, &not_ours);
    let Some(verdict) = judge(&pcap) else { return };
    assert_eq!(verdict, ("icrc ok=0 bad=0 other=3".to_owned(), Some(1)));
}

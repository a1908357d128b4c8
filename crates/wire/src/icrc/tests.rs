//! The ICRC against a CRC computed bit by bit, and the recovered identification against trying all of them.

use super::*;
use proptest::prelude::*;
use std::vec::Vec;

const SOURCE: Ipv4Addr = Ipv4Addr::new(10, 98, 0, 1);
const DESTINATION: Ipv4Addr = Ipv4Addr::new(10, 98, 0, 2);

/// CRC-32 from its definition, one bit at a time.
fn crc_bit_by_bit(bytes: &[u8]) -> u32 {
    let mut register = u32::MAX;
    for &byte in bytes {
        register ^= u32::from(byte);
        for _ in 0..8 {
            register = register >> 1 ^ if register & 1 == 1 { 0xEDB8_8320 } else { 0 };
        }
    }
    !register
}

fn masked_v4(identification: u16, transport: &[u8]) -> Vec<u8> {
    let mut bytes = std::vec![0xFF; 8];
    let ip_len = u16::try_from(32 + transport.len()).expect("short");
    let udp_len = u16::try_from(12 + transport.len()).expect("short");
    bytes.extend([0x45, 0xFF]);
    bytes.extend(ip_len.to_be_bytes());
    bytes.extend(identification.to_be_bytes());
    bytes.extend([
        0x40, 0, 0xFF, 17, 0xFF, 0xFF, 10, 98, 0, 1, 10, 98, 0, 2, 0xC0, 0x00, 0x12, 0xB7,
    ]);
    bytes.extend(udp_len.to_be_bytes());
    bytes.extend([0xFF, 0xFF]);
    bytes.extend(transport);
    bytes[8 + 28 + 4] = 0xFF;
    bytes
}

fn ours(identification: u16, transport: &[&[u8]]) -> u32 {
    icrc_ipv4(
        SOURCE,
        DESTINATION,
        0xC000,
        4791,
        identification,
        DONT_FRAGMENT,
        transport,
    )
}

fn check(transport: &[u8], received: u32) -> Option<u16> {
    check_ipv4_unknown_id(SOURCE, DESTINATION, 0xC000, 4791, &[transport], received)
}

#[test]
fn an_ipv6_icrc_is_the_crc_of_the_masked_packet() {
    let transport = [7; 24];
    let mut bytes = std::vec![0xFF; 8];
    bytes.extend([0x6F, 0xFF, 0xFF, 0xFF, 0, 36, 17, 0xFF]);
    bytes.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    bytes.extend([0xFE, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
    bytes.extend([0xC1, 0x23, 0x12, 0xB7, 0, 36, 0xFF, 0xFF]);
    bytes.extend([7, 7, 7, 7, 0xFF]);
    bytes.extend([7; 19]);
    let destination = "fe80::2".parse().expect("an address");
    let got = icrc_ipv6(
        Ipv6Addr::LOCALHOST,
        destination,
        0xC123,
        4791,
        &[&transport],
    );
    assert_eq!(got, crc_bit_by_bit(&bytes));

    let source = SocketAddr::new(Ipv6Addr::LOCALHOST.into(), 0xC123);
    let addresses =
        UdpAddresses::new(source, SocketAddr::new(destination.into(), 4791)).expect("one family");
    assert!(addresses.is_right(&[&transport], got));
    assert!(!addresses.is_right(&[&transport], got ^ 1));
}

#[test]
fn mapped_addresses_count_as_ipv4_and_mixed_families_are_refused() {
    let transport = [1; 16];
    let mapped = |ip: Ipv4Addr, port| SocketAddr::new(ip.to_ipv6_mapped().into(), port);
    let addresses =
        UdpAddresses::new(mapped(SOURCE, 0xC000), mapped(DESTINATION, 4791)).expect("one family");
    assert_eq!(addresses.icrc(5, &[&transport]), ours(5, &[&transport]));
    assert!(addresses.is_right(&[&transport], ours(5, &[&transport])));
    assert_eq!(
        UdpAddresses::new(
            mapped(SOURCE, 1),
            SocketAddr::new(Ipv6Addr::LOCALHOST.into(), 2)
        ),
        None
    );
}

#[test]
fn only_the_true_identification_gives_the_received_icrc() {
    for len in [16, 20, 276, 4112] {
        let transport = std::vec![0x5A; len];
        let zero = ours(0, &[&transport]);
        let received = ours(0xBEEF, &[&transport]);
        let bits = identification_bits(len);
        let all: Vec<u16> = (0..=u16::MAX)
            .filter(|&id| zero ^ by_linearity(&bits, id) == received)
            .collect();
        assert_eq!(all, [0xBEEF]);
        assert_eq!(check(&transport, received), Some(0xBEEF));
    }
}

/// The difference an identification makes, by running the register forward over zeros, a bit at a time.
fn difference_of(identification: u16, len: usize) -> u32 {
    let mut register = u32::from(identification.swap_bytes());
    for _ in 0..(16 + 8 + len) * 8 {
        register = register >> 1 ^ if register & 1 == 1 { 0xEDB8_8320 } else { 0 };
    }
    register
}

#[test]
fn going_back_undoes_going_forward_over_any_length() {
    for bytes in [
        0, 1, 2, 63, 64, 65, 127, 128, 4096, 8191, 8192, 8193, 65_535,
    ] {
        let start = 0x1234_5678;
        let mut register = start;
        for _ in 0..bytes * 8 {
            register = register >> 1 ^ if register & 1 == 1 { 0xEDB8_8320 } else { 0 };
        }
        assert_eq!(
            reverse::by_bytes(register, bytes),
            start,
            "over {bytes} bytes"
        );
    }
}

/// The 16 bits of check that remain: of all single flipped bits of a packet, and of random damage, hardly any passes.
#[test]
fn damage_is_found_as_often_as_sixteen_bits_can() {
    let transport: Vec<u8> = (0..1040_u32).map(|i| i.to_le_bytes()[0]).collect();
    let received = ours(77, &[&transport]);
    let mut flips = 0;
    let mut passed = 0;
    for byte in 0..transport.len() {
        for bit in 0..8 {
            let mut damaged = transport.clone();
            damaged[byte] ^= 1 << bit;
            flips += 1;
            passed += u32::from(byte != BTH_MASKED_BYTE && check(&damaged, received).is_some());
        }
    }
    assert_eq!(flips, 8320);
    assert!(passed <= 2, "{passed} of {flips} damaged packets passed");
    let icrc_flips = (0..32)
        .filter(|bit| check(&transport, received ^ 1 << bit).is_some())
        .count();
    assert_eq!(icrc_flips, 0);
}

proptest! {
    #[test]
    fn an_ipv4_icrc_is_the_crc_of_the_masked_packet(
        identification: u16,
        transport in proptest::collection::vec(any::<u8>(), 12..600),
        cuts in proptest::collection::vec(0_usize..600, 0..4),
    ) {
        let expected = crc_bit_by_bit(&masked_v4(identification, &transport));
        prop_assert_eq!(ours(identification, &[&transport]), expected);

        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(transport.len())).collect();
        cuts.extend([0, transport.len()]);
        cuts.sort_unstable();
        let pieces: Vec<&[u8]> = cuts.windows(2).map(|cut| &transport[cut[0]..cut[1]]).collect();
        prop_assert_eq!(ours(identification, &pieces), expected, "in {} pieces", pieces.len());
    }

    #[test]
    fn the_identification_is_recovered(
        identification: u16,
        transport in proptest::collection::vec(any::<u8>(), 12..9000),
    ) {
        prop_assert_eq!(check(&transport, ours(identification, &[&transport])), Some(identification));
    }
}

proptest! {
    // Each case tries 65,536 identifications.
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_wrong_icrc_is_found_unless_some_identification_explains_it(
        received: u32,
        transport in proptest::collection::vec(any::<u8>(), 12..64),
    ) {
        let zero = ours(0, &[&transport]);
        let bits = identification_bits(transport.len());
        let brute = (0..=u16::MAX).find(|&id| zero ^ by_linearity(&bits, id) == received);
        prop_assert_eq!(check(&transport, received), brute);
    }
}

/// What each bit of the identification does to the ICRC of a packet with `len` bytes of transport.
fn identification_bits(len: usize) -> [u32; 16] {
    core::array::from_fn(|bit| difference_of(1 << bit, len))
}

/// The difference an identification makes: that of its bits together.
fn by_linearity(bits: &[u32; 16], identification: u16) -> u32 {
    (0..16)
        .filter(|bit| identification >> bit & 1 == 1)
        .fold(0, |all, bit| all ^ bits[bit])
}

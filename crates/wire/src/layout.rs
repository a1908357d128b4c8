//! Field tables: where each field of a management datagram lies, in the specification's notation.
//!
//! A table can be laid beside the specification's, and is checked by the compiler: fields are in order, do not overlap
//! and end before the private data. Packet headers, which every data packet carries, are read and written directly.

use crate::mad::{MAD_HEADER_LEN, MAD_LEN};
use crate::units::Gid;

/// A field: byte offset, first bit within that byte counted from its most significant, and width in bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Field {
    name: &'static str,
    byte: usize,
    bit: u32,
    width: u32,
}

impl Field {
    pub(crate) const fn new(name: &'static str, byte: usize, bit: u32, width: u32) -> Self {
        assert!(
            bit < 8 && width >= 1 && bit + width <= 128,
            "a field fits 128 bits from its first byte"
        );
        Self {
            name,
            byte,
            bit,
            width,
        }
    }

    /// The field's name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// The offset of the field's first byte, counted after the MAD header.
    #[must_use]
    pub const fn byte(&self) -> usize {
        self.byte
    }

    /// The field's first bit within that byte; 0 is the most significant.
    #[must_use]
    pub const fn bit(&self) -> u32 {
        self.bit
    }

    /// The field's width in bits.
    #[must_use]
    pub const fn width(&self) -> u32 {
        self.width
    }

    /// The largest value the field can hold.
    #[must_use]
    pub const fn max(&self) -> u128 {
        u128::MAX >> (128 - self.width)
    }

    /// The field's value in `body`, the bytes after the MAD header, or `None` if `body` ends before the field does.
    #[must_use]
    pub fn read(&self, body: &[u8]) -> Option<u128> {
        let bytes = body.get(self.byte..self.end_byte())?;
        let all = bytes
            .iter()
            .fold(0, |value, &byte| value << 8 | u128::from(byte));
        Some(all >> self.trailing_bits() & self.max())
    }

    /// The value of a field that lies within `body`, which the compiler checked with the table.
    pub(crate) fn get(&self, body: &Body) -> u128 {
        self.read(body).unwrap_or_default()
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "the low bits of a field that the table says is narrow"
    )]
    pub(crate) fn get_u8(&self, body: &Body) -> u8 {
        self.get(body) as u8
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "the low bits of a field that the table says is narrow"
    )]
    pub(crate) fn get_u16(&self, body: &Body) -> u16 {
        self.get(body) as u16
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "the low bits of a field that the table says is narrow"
    )]
    pub(crate) fn get_u32(&self, body: &Body) -> u32 {
        self.get(body) as u32
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "the low bits of a field that the table says is narrow"
    )]
    pub(crate) fn get_u64(&self, body: &Body) -> u64 {
        self.get(body) as u64
    }

    pub(crate) fn get_bool(&self, body: &Body) -> bool {
        self.get(body) != 0
    }

    pub(crate) fn get_gid(&self, body: &Body) -> Gid {
        Gid(self.get(body).to_be_bytes())
    }

    /// Writes `value`, or the largest value of the field if `value` is wider; the bits around the field stay.
    pub(crate) fn put(&self, body: &mut Body, value: impl Into<u128>) {
        let mut value = value.into().min(self.max()) << self.trailing_bits();
        let mut mask = self.max() << self.trailing_bits();
        for byte in body[self.byte..self.end_byte()].iter_mut().rev() {
            *byte = *byte & !mask.to_le_bytes()[0] | value.to_le_bytes()[0];
            value >>= 8;
            mask >>= 8;
        }
    }

    pub(crate) fn put_gid(&self, body: &mut Body, gid: Gid) {
        self.put(body, u128::from_be_bytes(gid.0));
    }

    const fn end_bit(&self) -> usize {
        self.byte * 8 + self.bit as usize + self.width as usize
    }

    const fn end_byte(&self) -> usize {
        self.end_bit().div_ceil(8)
    }

    const fn trailing_bits(&self) -> usize {
        self.end_byte() * 8 - self.end_bit()
    }
}

/// The bytes of a management datagram after its header.
pub(crate) type Body = [u8; BODY_LEN];

pub(crate) const BODY_LEN: usize = MAD_LEN - MAD_HEADER_LEN;

/// Asserts at compile time that `table` is in order, without overlaps, and that header, fields up to `private_data` and
/// `private_len` bytes of private data are one MAD.
pub(crate) const fn check(table: &[Field], private_data: usize, private_len: usize) {
    assert!(
        MAD_HEADER_LEN + private_data + private_len == MAD_LEN,
        "header, body and private data are one MAD"
    );
    let mut end = 0;
    let mut i = 0;
    while i < table.len() {
        let field = &table[i];
        assert!(
            field.byte * 8 + field.bit as usize >= end,
            "fields are in order and do not overlap"
        );
        end = field.end_bit();
        i += 1;
    }
    assert!(
        end <= private_data * 8,
        "fields end where the private data begins"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cm::{Apr, Drep, Dreq, Lap, Mra, Rej, Rep, Req, Rtu, SidrRep, SidrReq};

    #[test]
    fn a_field_keeps_to_its_bits() {
        let field = Field::new("some", 2, 3, 10);
        let mut body = [0xFF; BODY_LEN];
        field.put(&mut body, 0_u8);
        assert_eq!(body[..5], [0xFF, 0xFF, 0b1110_0000, 0b0000_0111, 0xFF]);
        field.put(&mut body, 0b10_0000_0001_u16);
        assert_eq!(body[..5], [0xFF, 0xFF, 0b1111_0000, 0b0000_1111, 0xFF]);
        assert_eq!(field.get(&body), 0b10_0000_0001);
        field.put(&mut body, u32::MAX);
        assert_eq!(field.get(&body), field.max());
        assert_eq!(field.read(&body[..3]), None);
        assert_eq!(field.read(&body[..4]), Some(0x3FF));
    }

    #[test]
    fn each_field_of_a_message_holds_its_largest_value_and_disturbs_no_other() {
        for table in [
            Req::FIELDS,
            Rep::FIELDS,
            Rej::FIELDS,
            Mra::FIELDS,
            Rtu::FIELDS,
            Dreq::FIELDS,
            Drep::FIELDS,
            SidrReq::FIELDS,
            SidrRep::FIELDS,
            Lap::FIELDS,
            Apr::FIELDS,
        ] {
            for field in table {
                let mut body = [0; BODY_LEN];
                field.put(&mut body, field.max());
                assert_eq!(
                    body.iter().map(|byte| byte.count_ones()).sum::<u32>(),
                    field.width()
                );
                for other in table {
                    let wanted = if other == field { field.max() } else { 0 };
                    assert_eq!(
                        other.get(&body),
                        wanted,
                        "{} beside {}",
                        other.name(),
                        field.name()
                    );
                }
            }
        }
    }
}

//! Running a CRC register backwards over zero bytes, in a few multiplications.
//!
//! A register is a polynomial over GF(2) modulo the CRC's; here bit 31 is the coefficient of x^0 and bit 0 that of x^31,
//! since the CRC takes the least significant bit of a byte first. One zero byte multiplies the register by x^8, so that going
//! back over n of them multiplies by x^(-8n). That power is put together from tables of the low, middle and high bits of n,
//! computed by the compiler: a packet of up to 8 KiB costs two multiplications, about as much as the CRC itself.

/// The register as it was before `bytes` zero bytes.
pub(super) fn by_bytes(register: u32, bytes: usize) -> u32 {
    let mut register = multiply(register, LOW[bytes % LOW.len()]);
    let above = bytes / LOW.len();
    register = multiply(register, MIDDLE[above % MIDDLE.len()]);
    // UDP ends at 64 KiB; the loop has no bound of its own only so that the function has none.
    for _ in 0..above / MIDDLE.len() {
        register = multiply(register, HIGH);
    }
    register
}

/// The product of two polynomials modulo the CRC's.
const fn multiply(a: u32, b: u32) -> u32 {
    let mut product = 0;
    let mut shifted = b;
    let mut bit = 32;
    while bit > 0 {
        bit -= 1;
        product ^= shifted & (a >> bit & 1).wrapping_neg();
        shifted = shifted >> 1 ^ POLYNOMIAL & (shifted & 1).wrapping_neg();
    }
    product
}

/// The register as it was before one zero byte.
const fn back_one_byte(mut register: u32) -> u32 {
    let mut bit = 0;
    while bit < 8 {
        // The polynomial's top bit is set and a shifted register's is not, so the top bit tells whether it was added.
        let added = register >> 31;
        register = (register ^ POLYNOMIAL & added.wrapping_neg()) << 1 | added;
        bit += 1;
    }
    register
}

/// Powers of `base`, beginning with x^0.
const fn powers<const N: usize>(base: u32) -> [u32; N] {
    let mut table = [ONE; N];
    let mut i = 1;
    while i < N {
        table[i] = multiply(table[i - 1], base);
        i += 1;
    }
    table
}

/// The polynomial of CRC-32, least significant bit first.
const POLYNOMIAL: u32 = 0xEDB8_8320;
/// x^0
const ONE: u32 = 0x8000_0000;
/// x^-8 to the powers 0 to 63: back over that many bytes.
const LOW: [u32; 64] = powers(back_one_byte(ONE));
/// Back over multiples of 64 bytes.
const MIDDLE: [u32; 128] = powers(multiply(LOW[63], LOW[1]));
/// Back over 8192 bytes.
const HIGH: u32 = multiply(MIDDLE[127], MIDDLE[1]);

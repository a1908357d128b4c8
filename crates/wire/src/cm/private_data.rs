//! The private data at the end of every CM message: a fixed field, zero padded.

use core::fmt;

/// The whole private data field of a message, `N` bytes. The length that the sender meant is not sent: what is shorter
/// is padded with zeros, and the receiver sees the padding.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PrivateData<const N: usize>([u8; N]);

impl<const N: usize> PrivateData<N> {
    /// The size of the field.
    pub const LEN: usize = N;
    /// All zero.
    pub const ZERO: Self = Self([0; N]);

    /// `given`, padded with zeros.
    ///
    /// # Errors
    /// [`PrivateDataTooLong`] if `given` is longer than the field.
    pub fn from_slice(given: &[u8]) -> Result<Self, PrivateDataTooLong> {
        let mut bytes = [0; N];
        bytes
            .get_mut(..given.len())
            .ok_or(PrivateDataTooLong {
                given: given.len(),
                max: N,
            })?
            .copy_from_slice(given);
        Ok(Self(bytes))
    }

    /// The whole field.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; N] {
        &self.0
    }

    /// Whether every byte is zero, as when the sender gave none.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        self.0.iter().all(|&byte| byte == 0)
    }
}

impl<const N: usize> Default for PrivateData<N> {
    fn default() -> Self {
        Self::ZERO
    }
}

impl<const N: usize> From<[u8; N]> for PrivateData<N> {
    fn from(bytes: [u8; N]) -> Self {
        Self(bytes)
    }
}

impl<const N: usize> AsRef<[u8]> for PrivateData<N> {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl<const N: usize> fmt::Debug for PrivateData<N> {
    /// Hexadecimal, without the zeros at the end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = self
            .0
            .iter()
            .rposition(|&byte| byte != 0)
            .map_or(0, |last| last + 1);
        write!(f, "PrivateData<{N}>(")?;
        self.0[..used]
            .iter()
            .try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str(")")
    }
}

/// More private data than the message carries.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PrivateDataTooLong {
    /// Bytes that were given.
    pub given: usize,
    /// Bytes that the message carries.
    pub max: usize,
}

impl fmt::Display for PrivateDataTooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} bytes of private data, the message carries {}",
            self.given, self.max
        )
    }
}

impl core::error::Error for PrivateDataTooLong {}

//! The additional information of a REJ, an APR or a SIDR_REP.

use core::fmt;

/// Additional information: up to 72 bytes whose meaning depends on the reason of a REJ, or the status of an APR or SIDR_REP.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ari {
    len: u8,
    bytes: [u8; Self::MAX_LEN],
}

impl Ari {
    /// The size of the field.
    pub const MAX_LEN: usize = 72;
    /// No information.
    pub const EMPTY: Self = Self {
        len: 0,
        bytes: [0; Self::MAX_LEN],
    };

    /// `given` as additional information.
    ///
    /// # Errors
    /// [`AriTooLong`] if `given` is longer than 72 bytes.
    pub fn from_slice(given: &[u8]) -> Result<Self, AriTooLong> {
        let too_long = AriTooLong { given: given.len() };
        let len = u8::try_from(given.len()).map_err(|_| too_long)?;
        let mut bytes = [0; Self::MAX_LEN];
        bytes
            .get_mut(..given.len())
            .ok_or(too_long)?
            .copy_from_slice(given);
        Ok(Self { len, bytes })
    }

    /// The information, as long as its sender meant it to be.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The length in bytes.
    #[must_use]
    pub const fn len(&self) -> u8 {
        self.len
    }
}

impl Default for Ari {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl fmt::Debug for Ari {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ari(")?;
        self.as_bytes()
            .iter()
            .try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str(")")
    }
}

/// More additional information than a message carries.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AriTooLong {
    /// Bytes that were given.
    pub given: usize,
}

impl fmt::Display for AriTooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} bytes of additional information, a message carries {}",
            self.given,
            Ari::MAX_LEN
        )
    }
}

impl core::error::Error for AriTooLong {}

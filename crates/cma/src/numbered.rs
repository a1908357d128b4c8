//! Numbers of the kernel's ABI as open types: every number is a value, and the known ones have names.

/// Gives a one-field type its named constants, [`name`](crate::Errno::name), and a `Display` that falls back to the number.
macro_rules! named_numbers {
    ($type:ident, $doc:literal, $unknown:literal: $($name:ident = $value:literal, $text:literal;)*) => {
        impl $type {
            $(#[doc = concat!($doc, " ", $value, ": ", $text, ".")]
            pub const $name: Self = Self($value);)*

            /// The name as in the C header (of an event, without its prefix), or `None` for a number that this crate never
            /// gives.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }

        impl core::fmt::Display for $type {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, concat!($unknown, " {}"), self.0),
                }
            }
        }
    };
}

pub(crate) use named_numbers;

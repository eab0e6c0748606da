//! Types that pack fields into one integer, the form that a BPF subprogram can take and return.

/// Implements the conversion of a packed type from and to its integer.
macro_rules! impl_bits {
    ($packed:ty, $bits:ty) => {
        impl $packed {
            /// The value from [`Self::to_bits`].
            #[inline(always)]
            #[must_use]
            pub const fn from_bits(bits: $bits) -> Self {
                Self(bits)
            }

            /// The packed integer.
            #[inline(always)]
            #[must_use]
            pub const fn to_bits(self) -> $bits {
                self.0
            }
        }
    };
}

pub(crate) use impl_bits;

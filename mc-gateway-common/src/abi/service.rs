//! Layout of the Service translation maps.

//! Layout of the liveness maps.

//! Tests of several stages together.

mod incremental;

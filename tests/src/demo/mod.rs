//! The demo (to come).

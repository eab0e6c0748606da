//! The shell around the pure plans: watches, requests, time.

pub mod apply;
mod batch;
pub mod election;
pub mod goodbye;
pub mod leader;
pub mod link;
pub mod member;
pub mod outside;
pub mod pods;
pub mod remarks;
pub mod report;
pub mod service_cidr;
pub mod watch;

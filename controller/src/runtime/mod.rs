//! I/O around the pure plans: watches, writes, election, Events, time.
//!
//! `kube::runtime::Controller` reconciles one object at a time. A plan here depends on all objects of several kinds in
//! two clusters, so each loop makes one plan of a whole snapshot instead.

mod admission_poll;
mod api_health;
pub mod applier;
mod batch;
mod cache;
mod complete_exporters;
pub mod deregistration;
pub mod election;
pub mod env;
pub mod events;
pub mod issue_log;
pub mod leader;
pub mod leader_connection;
mod listed_imports;
pub mod member;
mod member_stores;
mod pod_addresses;
mod pod_labels;
mod schedule;
mod secret_poll;
pub mod service_cidr;

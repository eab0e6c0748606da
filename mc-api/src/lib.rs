//! The multi-cluster API: kinds (one module each), names, labels, validation, the configuration file and the CRDs.
//!
//! The JSON is that of Antrea Multi-cluster; additions are optional and marked "superset". No I/O and no Kubernetes
//! client: the agent and the controllers depend on this crate, and it depends on neither.
#![forbid(unsafe_code)]

pub mod address_group_slice;
pub mod cluster_claim;
pub mod cluster_info;
pub mod cluster_set;
pub mod condition;
pub mod config;
pub mod crd;
pub mod exported_metadata;
pub mod gateway;
pub mod import_failures;
pub mod label_identity;
pub mod label_selector;
pub mod listen_addr;
pub mod member_cluster_announce;
pub mod names;
pub mod network_policy;
pub mod node_key;
pub mod node_policy_status;
pub mod node_reachability;
pub mod policy_selectors;
pub mod raw_payload;
pub mod renamed_annotation;
pub mod resource_export;
pub mod resource_import;
mod schema;
pub mod service_export;
pub mod service_import;
pub mod validation;
pub mod wire_guard;

//! The kinds of the multi-cluster API, one file each, with their names, labels and validation.
//!
//! The JSON is that of Antrea Multi-cluster; what we add to it is optional and marked "superset".

pub mod bind;
pub mod cluster_claim;
pub mod cluster_info;
pub mod cluster_set;
pub mod condition;
pub mod config;
pub mod crd;
pub mod gateway;
pub mod label_identity;
pub mod member_cluster_announce;
pub mod names;
pub mod network_policy;
pub mod resource_export;
pub mod resource_import;
pub mod service_export;
pub mod service_import;
pub mod validation;

//! Code that several suites share, apart from `mc-tests` so that the demo and the data-path benchmark build without
//! Kubernetes clients.
#![expect(
    clippy::indexing_slicing,
    reason = "JSON objects are read and made by indexing them"
)]

pub mod datapath;
pub mod fake_apiserver;
pub mod kube_clients;

//! The specs of the MCS API's conformance suite (v1beta1). A test records the specs it has verified; the suite
//! `conformance` counts them.

/// All specs: the required ones, then the optional ones.
const SPECS: [&str; 27] = [
    "a Service that is not exported has no name in the set",
    "an import exists while one cluster exports",
    "an export is valid, and its import of type ClusterSetIP exists as long as it",
    "an import has the session affinity of the Service",
    "an import has the internalTrafficPolicy of the Service",
    "an import has the trafficDistribution of the Service",
    "an import has an address for each of its families",
    "an import has the ports of the Service",
    "different ports are merged, and all exporters report a conflict",
    "the oldest export decides the number of a port, and all exporters report a conflict",
    "a headless export's import is headless, and is removed with it",
    "a headless import has no address",
    "an ExternalName is not valid and has no import",
    "the oldest export decides between an address and headless, and all exporters report a conflict",
    "an import has the exported labels and annotations",
    "the oldest export decides labels and annotations, and all exporters report a conflict",
    "each cluster has slices per exporting cluster with their own manager, removed with the export",
    "a name resolves to the addresses of its import",
    "ports of one number have one SRV record",
    "the cluster's own name is unchanged",
    "a headless Service's name resolves to its ready Pods",
    "a Pod of a headless Service has a name",
    "a headless Service has an SRV record for each Pod",
    "an exported Service answers in every cluster",
    "only exporters serve",
    "only the oldest export's number of a port is served",
    "each port is served by its exporters",
];

/// Prints the specs a test has verified.
pub(crate) fn record(specs: &[&str]) {
    for spec in specs {
        assert!(SPECS.contains(spec), "there is no spec {spec:?}");
        println!("spec holds: {spec}");
    }
}

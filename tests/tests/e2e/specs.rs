//! The specs of the MCS API's conformance suite (v1beta1). A test records the specs it has verified; the suite
//! `conformance` counts them.

/// All specs: the required ones, then the optional ones.
const SPECS: [&str; 27] = [
    "a Service that is not exported has no name in the set",
    "an import lives as long as one cluster exports",
    "an export is valid, and its import of type ClusterSetIP comes and goes with it",
    "an import has the session affinity of the Service",
    "an import has the internalTrafficPolicy of the Service",
    "an import has the trafficDistribution of the Service",
    "an import has an address for each of its families",
    "an import has the ports of the Service",
    "different ports are united, and all exporters are told",
    "of one port with two numbers the oldest export's is used, and all exporters are told",
    "a headless export's import is headless, and goes with it",
    "a headless import has no address",
    "an ExternalName is not valid and has no import",
    "of a Service with an address and a headless one the oldest export's type is used, and all exporters are told",
    "labels and annotations of the export are the import's",
    "of labels and annotations that differ the oldest export's are used, and all exporters are told",
    "each cluster has slices by exporting cluster that nobody else keeps, and they go with the export",
    "a name stands for the addresses of its import",
    "ports of one number have one SRV record",
    "the cluster's own name is what it was",
    "a headless Service's name stands for its ready Pods",
    "a Pod of a headless Service has a name",
    "a headless Service has an SRV record for each Pod",
    "an exported Service answers in every cluster",
    "only exporters serve",
    "of one port with two numbers only the oldest export's is served",
    "each port is served by those who export it",
];

/// Prints the specs a test has verified.
pub(crate) fn record(specs: &[&str]) {
    for spec in specs {
        assert!(SPECS.contains(spec), "there is no spec {spec:?}");
        println!("spec holds: {spec}");
    }
}

//! The imports that the leader has listed or reported since the last relist.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use mc_api::resource_import::ResourceImport;
use mc_kube::ObjectMap;

/// Names of imports, each with the clusters that its endpoints had; empty on a new connection.
#[derive(Clone, Debug, Default)]
pub(super) struct ListedImports {
    relists: u32,
    imports: Arc<BTreeMap<String, BTreeSet<String>>>,
}

/// The clusters of an import's endpoints.
fn clusters(import: &ResourceImport) -> impl Iterator<Item = &String> {
    let endpoints = import.spec.endpoints.iter();
    endpoints
        .flat_map(|endpoints| &endpoints.clusters)
        .map(|cluster| &cluster.cluster_id)
}

// === impl ListedImports ===

impl ListedImports {
    /// Adds the imports of a snapshot after this number of relists; a relist removes the others.
    pub(super) fn update(
        &mut self,
        relists: u32,
        imports: &ObjectMap<ResourceImport>,
    ) -> Arc<BTreeMap<String, BTreeSet<String>>> {
        if self.relists != relists {
            self.relists = relists;
            self.imports = Arc::default();
        }
        for (key, import) in imports.iter() {
            let known = self.imports.get(&key.name);
            let is_known = known.is_some_and(|known| clusters(import).all(|cluster| known.contains(cluster)));
            if !is_known {
                let listed = Arc::make_mut(&mut self.imports)
                    .entry(key.name.clone())
                    .or_default();
                listed.extend(clusters(import).cloned());
            }
        }
        self.imports.clone()
    }
}

#[cfg(test)]
mod tests {
    use mc_kube::ObjectMap;
    use serde_json::json;

    use super::*;
    use crate::snapshot::fake::{insert, object};

    fn imports(names: &[&str]) -> ObjectMap<ResourceImport> {
        let mut imports = ObjectMap::default();
        for name in names {
            let import = json!({
                "metadata": { "name": name, "namespace": "mc" },
                "spec": { "kind": "ServiceImport", "namespace": "shop", "name": name },
            });
            insert(&mut imports, object(import));
        }
        imports
    }

    fn texts(imports: &BTreeMap<String, BTreeSet<String>>) -> Vec<&str> {
        imports.keys().map(String::as_str).collect()
    }

    #[test]
    fn imports_remain_listed_until_the_next_relist() {
        let mut listed = ListedImports::default();
        assert_eq!(texts(&listed.update(0, &imports(&["a", "b"]))), ["a", "b"]);
        assert_eq!(
            texts(&listed.update(0, &imports(&["b"]))),
            ["a", "b"],
            "a was deleted"
        );
        assert_eq!(texts(&listed.update(0, &imports(&["b", "c"]))), ["a", "b", "c"]);
        assert_eq!(texts(&listed.update(1, &imports(&["c"]))), ["c"]);
    }

    #[test]
    fn clusters_of_endpoints_remain_listed() {
        let endpoints = |clusters: &[&str]| {
            let clusters: Vec<_> = clusters
                .iter()
                .map(|id| json!({ "clusterID": id, "subsets": [] }))
                .collect();
            let import = json!({
                "metadata": { "name": "a", "namespace": "mc" },
                "spec": { "kind": "Endpoints", "endpoints": { "subsets": [], "clusters": clusters } },
            });
            let mut imports = ObjectMap::default();
            insert(&mut imports, object(import));
            imports
        };
        let mut listed = ListedImports::default();
        let _first = listed.update(0, &endpoints(&["west"]));
        let all = listed.update(0, &endpoints(&["south"]));
        let wanted = ["south", "west"].map(str::to_owned);
        assert_eq!(all["a"], BTreeSet::from(wanted));
    }
}

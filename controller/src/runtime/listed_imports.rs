//! The imports that the leader has listed or reported since the last relist.

use std::{collections::BTreeSet, sync::Arc};

use mc_api::resource_import::ResourceImport;
use mc_kube::ObjectMap;

/// Names of imports; empty on a new connection.
#[derive(Clone, Debug, Default)]
pub(super) struct ListedImports {
    relists: u32,
    names: Arc<BTreeSet<String>>,
}

// === impl ListedImports ===

impl ListedImports {
    /// Adds the imports of a snapshot after this number of relists; a relist removes the others.
    pub(super) fn update(
        &mut self,
        relists: u32,
        imports: &ObjectMap<ResourceImport>,
    ) -> Arc<BTreeSet<String>> {
        if self.relists != relists {
            self.relists = relists;
            self.names = Arc::default();
        }
        if imports.keys().any(|key| !self.names.contains(&key.name)) {
            let names = Arc::make_mut(&mut self.names);
            names.extend(imports.keys().map(|key| key.name.clone()));
        }
        self.names.clone()
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

    fn texts(names: &BTreeSet<String>) -> Vec<&str> {
        names.iter().map(String::as_str).collect()
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
}

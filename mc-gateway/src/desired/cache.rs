//! Results that are kept between computations of the desired state.

use std::collections::BTreeMap;

use super::forward_table::{ForwardTable, Forwarded};
use super::identities::IdentityCache;
use super::independent_clusters::IndependentClusters;
use super::local::LocalCluster;
use super::policies::PolicyCache;
use super::prefix_ownership::PrefixOwners;
use super::remote::{self, Remotes};
use super::{Established, LocalNode};
use crate::objects::{NodeInfo, Objects};

/// Results of the last computation, which save work in the next one. No desired state depends on them.
#[derive(Clone, Debug, Default)]
pub struct DesiredCache {
    /// None while statements of objects exclude each other.
    clusters: Option<IndependentClusters>,
    table: ForwardTable,
    pub(super) policies: PolicyCache,
    pub(super) identities: IdentityCache,
}

impl DesiredCache {
    /// The local and the remote clusters; `nodes` are sorted by name and contain the local Node.
    pub(super) fn read(
        &mut self,
        objects: &Objects,
        nodes: &[&NodeInfo],
        me: &LocalNode,
        established: &Established,
    ) -> (LocalCluster, Remotes) {
        if let Some(known) = self.clusters.take() {
            // No statement of the local cluster is in a prefix of another one, or else the update fails.
            let cluster = LocalCluster::read(objects, nodes, me, PrefixOwners::default());
            if let Some((known, remotes, table)) =
                known.update(objects, me, established, &cluster, &self.table)
            {
                self.clusters = Some(known);
                self.table = table;
                return (cluster, remotes);
            }
        }
        let infos = remote::by_seniority(objects, established);
        let others = infos.iter().map(|(info, established)| (&***info, established));
        let owners = Established::owners(
            others.filter(|(info, _)| me.cluster_id.as_deref() != Some(info.cluster_id.as_str())),
        );
        let mut cluster = LocalCluster::read(objects, nodes, me, owners);
        let claims = cluster.take_claims();
        let remotes = remote::validate(infos.iter().map(|(info, _)| *info), &cluster, claims, me);
        (cluster, remotes)
    }

    /// The prefixes of the clusters that are forwarded, by ID. `remotes` are those that were read from these objects.
    pub(super) fn forward(
        &mut self,
        clusters: BTreeMap<u64, Forwarded>,
        objects: &Objects,
        me: &LocalNode,
        remotes: &Remotes,
    ) -> &ForwardTable {
        let complete = clusters.len() == self.table.clusters().len();
        self.table.update(clusters);
        self.clusters = match self.clusters.take() {
            // Later prefixes would not be compared with those that the table leaves out.
            Some(known) => complete.then_some(known),
            None => IndependentClusters::new(objects, me, remotes, &self.table),
        };
        &self.table
    }
}

#[cfg(test)]
impl DesiredCache {
    /// Whether the next computation validates changed clusters only.
    pub(crate) fn has_independent_clusters(&self) -> bool {
        self.clusters.is_some()
    }
}

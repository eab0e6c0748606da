//! A member: what is exported to the leader, and what is made of what others exported.
//!
//! Pure: a [`MemberWorld`] gives a [`Plan`]; applying it and looking again gives an empty one. Silence of
//! the leader removes nothing: lists that were never read, or not completely, are not acted upon.

pub mod candidates;
pub mod cluster_info;
pub mod doubt;
pub mod exports;
pub mod families;
pub mod gateways;
pub mod imports;
pub mod labels;
pub mod membership;
pub mod parting;
pub mod policies;
pub mod selectors;
pub mod slices;

use self::slices::ByService;
use crate::{
    api::{cluster_set::ClusterSet, config::EndpointIpType},
    identity,
    plan::Plan,
    world::{LeaderView, MemberWorld},
};

/// What the subjects need to know of a membership in force.
#[derive(Clone, Copy, Debug)]
pub struct Session<'a> {
    /// The ID of the local cluster.
    pub cluster_id: &'a str,
    /// Where the leader keeps the exchanged objects.
    pub leader_namespace: &'a str,
    /// The leader's objects, complete.
    pub leader: &'a LeaderView,
    /// What is exported as endpoints.
    pub endpoint_ip_type: EndpointIpType,
}

/// Everything that is to be done now.
pub fn plan(world: &MemberWorld) -> Plan {
    let mut plan = Plan::default();
    let set = membership::current(world);
    if let Some(set) = set {
        identity::plan(set, &world.claims, &mut plan);
    }
    parting::plan(world, set, &mut plan);
    membership::plan(world, set, &mut plan);
    let Some(set) = set else {
        gateways::withdraw(world, &mut plan);
        imports::withdraw_all(world, &mut plan);
        cluster_info::withdraw(world, &mut plan);
        labels::withdraw(world, &mut plan);
        policies::withdraw(world, &mut plan);
        return plan;
    };
    let gateways = gateways::plan(world, &mut plan);
    let session = session(world, set);
    let slices = ByService::new(world);
    exports::plan(world, session.as_ref(), &slices, &mut plan);
    if let Some(session) = session {
        cluster_info::export(world, &session, &gateways, &mut plan);
        cluster_info::import(world, &session, &mut plan);
        imports::plan(world, &session, &slices, &mut plan);
        labels::plan(world, &session, &mut plan);
        policies::plan(world, &session, &mut plan);
        if let Some(until) = session.leader.doubt {
            doubt::hold_back(&mut plan, until);
        }
    }
    plan
}

/// The membership in force: accepted by the leader, and everything it offers has been read.
fn session<'a>(world: &'a MemberWorld, set: &'a ClusterSet) -> Option<Session<'a>> {
    let leader = world.leader.as_ref().filter(|l| l.synced)?;
    let accepted = membership::acceptance(leader, set) == membership::Acceptance::Accepted;
    accepted.then_some(Session {
        cluster_id: &set.spec.cluster_id,
        leader_namespace: membership::leader_namespace(set),
        leader,
        endpoint_ip_type: world.config.endpoint_ip_type,
    })
}

#[cfg(test)]
mod tests;

//! The status of groups, where the agents enforce every rule: Antrea's controller writes it elsewhere.
//!
//! The agents compute the members of a group. A group is complete, as with Antrea, once its spec is valid and its child
//! groups exist.

use std::collections::BTreeMap;

use jiff::Timestamp;
use kube::ResourceExt;
use mc_api::{
    condition,
    network_policy::{
        FieldError, GROUP_MEMBERS_COMPUTED, GroupCondition, GroupContents, GroupKind, GroupStatus,
        ObjectName, parse_group,
    },
};

use super::policy_reports::is_enforced;
use crate::{
    plan::{ApiServer, Plan, WritableKind},
    snapshot::{MemberSnapshot, OptionalKind, api_time},
};

/// The reason of Events on a group without members.
const INVALID_GROUP: &str = "InvalidGroup";

/// Writes the status of every group, and Events about those that are not complete.
pub fn plan(snapshot: &MemberSnapshot, plan: &mut Plan) {
    if is_enforced(snapshot) {
        statuses(&snapshot.cluster_groups, snapshot.now, plan);
        statuses(&snapshot.groups, snapshot.now, plan);
    }
}

fn statuses<K: GroupKind + WritableKind>(groups: &OptionalKind<K>, now: Timestamp, plan: &mut Plan) {
    let objects = groups.objects().into_iter().flat_map(|objects| objects.values());
    let parsed: Vec<_> = objects
        .map(|group| {
            let name = ObjectName {
                namespace: group.namespace(),
                name: group.name_any(),
            };
            let (parsed, errors) = parse_group(name, group.spec());
            (group, parsed, errors)
        })
        .collect();
    let contents: BTreeMap<_, _> = parsed
        .iter()
        .map(|(_, group, _)| (&group.name, &group.contents))
        .collect();
    let before = plan.writes.len();
    for (object, group, errors) in &parsed {
        if object.meta().deletion_timestamp.is_some() {
            continue;
        }
        let missing = missing_child(&group.name, &group.contents, &contents);
        let old = object.status();
        let is_complete = errors.is_empty() && missing.is_none();
        let new = status(&old, is_complete, now);
        if new != old && plan.has_room(before) {
            plan.status(ApiServer::Local, object.as_ref(), &new);
        }
        for message in errors.iter().map(text).chain(missing) {
            plan.warning_event(ApiServer::Local, object.as_ref(), INVALID_GROUP, message);
        }
    }
}

/// The first child that has no members, with field, value and cause.
fn missing_child(
    parent: &ObjectName,
    parent_contents: &GroupContents,
    contents: &BTreeMap<&ObjectName, &GroupContents>,
) -> Option<String> {
    let GroupContents::Children(children) = parent_contents else {
        return None;
    };
    children.iter().find_map(|child| {
        let name = ObjectName {
            namespace: parent.namespace.clone(),
            name: child.clone(),
        };
        let cause = match contents.get(&name) {
            Some(GroupContents::Pods(_) | GroupContents::Blocks(_)) => return None,
            Some(GroupContents::Children(_)) => "has child groups itself",
            Some(GroupContents::Unsupported) => "has an error in its spec",
            None => "does not exist",
        };
        Some(format!("spec.childGroups: {child:?} {cause}"))
    })
}

fn text(error: &FieldError) -> String {
    format!("{}: {:?} {}", error.field, error.value, error.reason)
}

/// The status with the time of the last change of the condition. A condition of another type is not kept: Antrea has
/// none.
fn status(old: &GroupStatus, is_complete: bool, now: Timestamp) -> GroupStatus {
    let status = if is_complete {
        condition::TRUE
    } else {
        condition::FALSE
    };
    let mut of_type = old.conditions.iter();
    let unchanged = of_type.find(|old| old.type_ == GROUP_MEMBERS_COMPUTED && old.status == status);
    let condition = unchanged.cloned().unwrap_or_else(|| GroupCondition {
        type_: GROUP_MEMBERS_COMPUTED.to_owned(),
        status: status.to_owned(),
        last_transition_time: Some(api_time(now)),
    });
    GroupStatus {
        conditions: vec![condition],
    }
}

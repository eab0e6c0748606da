//! Groups: Pods or addresses by name.

use serde_json::Value;

use super::{
    error::{Errors, FieldError, PolicyError},
    fields::{Fields, Rejected},
    object_name::ObjectName,
    peer::{IpBlock, PodMatch, parse_block, parse_pods},
};

/// A `ClusterGroup`, or a `Group` if its name has a Namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its name.
    pub name: ObjectName,
    /// Its members.
    pub contents: GroupContents,
}

/// The members of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupContents {
    /// Pods by labels.
    Pods(PodMatch),
    /// Addresses.
    Blocks(Vec<IpBlock>),
    /// The members of other groups of the same kind and Namespace; these have no child groups themselves.
    Children(Vec<String>),
    /// A spec with an error: its members are unknown, and a rule treats the group as a peer with an error.
    Unsupported,
}

// === impl Group ===

impl Group {
    /// Kind and name, as in errors.
    #[must_use]
    pub fn object(&self) -> String {
        object(&self.name)
    }
}

fn object(name: &ObjectName) -> String {
    name.with_kind("ClusterGroup", "Group")
}

/// Parses the spec of a `ClusterGroup` or `Group`.
#[must_use]
pub fn parse_group(name: ObjectName, spec: &Value) -> (Group, Vec<FieldError>) {
    let mut errors = Errors::new(object(&name));
    let contents = parse_contents(name.namespace.as_deref(), spec, &mut errors);
    let contents = contents.unwrap_or(GroupContents::Unsupported);
    (Group { name, contents }, errors.into_list())
}

fn parse_contents(
    namespace: Option<&str>,
    spec: &Value,
    errors: &mut Errors,
) -> Result<GroupContents, Rejected> {
    const FIELDS: [&str; 4] = ["podSelector", "namespaceSelector", "ipBlocks", "childGroups"];
    let spec = Fields::new(spec, "spec".to_owned(), errors)?;
    spec.only(&FIELDS, &["serviceReference", "externalEntitySelector"], errors)?;
    let blocks = spec.list("ipBlocks", errors)?;
    let children = spec.list("childGroups", errors)?;
    let selectors = spec.has("podSelector") || spec.has("namespaceSelector");
    if !blocks.is_empty() && (selectors || !children.is_empty()) {
        let other = if selectors {
            "podSelector or namespaceSelector"
        } else {
            "childGroups"
        };
        return Err(spec.reject("ipBlocks", PolicyError::Excludes { other }, errors));
    }
    if !children.is_empty() && selectors {
        let other = "podSelector or namespaceSelector";
        return Err(spec.reject("childGroups", PolicyError::Excludes { other }, errors));
    }
    if selectors {
        return parse_pods(&spec, namespace, errors).map(GroupContents::Pods);
    }
    if !blocks.is_empty() {
        let parse = |(index, block)| parse_block(block, spec.path_of(&format!("ipBlocks[{index}]")), errors);
        let parsed: Result<_, _> = blocks.iter().enumerate().map(parse).collect();
        return parsed.map(GroupContents::Blocks);
    }
    let names: Option<_> = children
        .iter()
        .map(|child| child.as_str().map(str::to_owned))
        .collect();
    names.map(GroupContents::Children).ok_or_else(|| {
        let expected = "a list of strings";
        spec.reject("childGroups", PolicyError::Type { expected }, errors)
    })
}

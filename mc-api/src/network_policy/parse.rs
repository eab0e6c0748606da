//! Specs of policies.

use std::sync::Arc;

use serde_json::Value;

use super::{
    direction::Direction,
    enforcement::EnforcementAction,
    error::{Errors, FieldError, PolicyError},
    fields::{Fields, Rejected},
    object_name::ObjectName,
    peer::{AppliedTo, Peer, parse_applied_to, parse_peers},
    policy::{self, Action, Policy, Priority, Realization, Rule},
    service::{Service, parse_services},
    tier::DEFAULT_TIER,
};

/// The scope of a policy's rules.
struct Context<'a> {
    namespace: Option<&'a str>,
    /// `appliedTo` of the policy.
    applied_to: &'a Arc<[AppliedTo]>,
    /// Whether an error of the policy itself leaves out all its rules.
    rejected: bool,
}

/// Parses the spec of a `ClusterNetworkPolicy`, or of a `NetworkPolicy` if its name has a Namespace. Each error names
/// the field; [`Realization`] is its consequence for the rule.
#[must_use]
pub fn parse(name: ObjectName, spec: &Value) -> (Policy, Vec<FieldError>) {
    let mut errors = Errors::new(policy::object(&name));
    let mut policy = Policy {
        name,
        created: None,
        tier: DEFAULT_TIER.to_owned(),
        priority: Priority::LAST,
        enforcement: EnforcementAction::default(),
        ingress: Vec::new(),
        egress: Vec::new(),
    };
    if let Ok(spec) = Fields::new(spec, "spec".to_owned(), &mut errors) {
        parse_spec(&mut policy, &spec, &mut errors);
    }
    (policy, errors.into_list())
}

fn parse_spec(policy: &mut Policy, spec: &Fields<'_>, errors: &mut Errors) {
    // The API server removes unknown fields; a field that this release does not know is reported and has no effect.
    let known = ["tier", "priority", "appliedTo", "ingress", "egress"];
    let _reported = spec.only(&known, &[], errors).is_err();
    if let Ok(Some(tier)) = spec.text("tier", errors) {
        tier.clone_into(&mut policy.tier);
    }
    let mut rejected = false;
    let priority = spec.get("priority").and_then(Value::as_f64);
    if let Some(priority) = priority.and_then(Priority::try_new) {
        policy.priority = priority;
    } else {
        let reason = if spec.has("priority") {
            PolicyError::Priority
        } else {
            PolicyError::Missing
        };
        spec.reject("priority", reason, errors);
        rejected = true;
    }
    let namespace = policy.name.namespace.as_deref();
    let applied_to = parse_applied_to(spec, namespace, errors);
    rejected |= applied_to.is_err();
    let context = Context {
        namespace,
        applied_to: &applied_to.unwrap_or_default().into(),
        rejected,
    };
    policy.ingress = parse_rules(spec, Direction::Ingress, &context, errors);
    policy.egress = parse_rules(spec, Direction::Egress, &context, errors);
}

fn parse_rules(
    spec: &Fields<'_>,
    direction: Direction,
    context: &Context<'_>,
    errors: &mut Errors,
) -> Vec<Rule> {
    let key = direction.field();
    let list = spec.list(key, errors).unwrap_or_default();
    let mut rules = Vec::new();
    for (index, rule) in list.iter().enumerate() {
        let path = spec.path_of(&format!("{key}[{index}]"));
        // A rule that is left out keeps its place, so that the numbers of rules are those of the spec.
        rules.push(parse_rule(rule, path, direction, context, errors).unwrap_or_else(|_| left_out()));
    }
    rules
}

fn left_out() -> Rule {
    Rule {
        name: None,
        action: Action::Drop,
        applied_to: Arc::default(),
        peers: Some(Vec::new()),
        services: Some(Vec::new()),
        realization: Realization::None,
    }
}

fn parse_rule(
    value: &Value,
    path: String,
    direction: Direction,
    context: &Context<'_>,
    errors: &mut Errors,
) -> Result<Rule, Rejected> {
    const KNOWN: [&str; 7] = [
        "action",
        "name",
        "enableLogging",
        "logLabel",
        "ports",
        "protocols",
        "appliedTo",
    ];
    let rule = Fields::new(value, path, errors)?;
    let (peers, others): (&[&str], &[&str]) = match direction {
        Direction::Ingress => (&["from"], &["to", "toServices"]),
        Direction::Egress => (&["to", "toServices"], &["from"]),
    };
    // Every field is parsed before the first error leaves the rule out, so that all errors are reported at once.
    let unsupported = [&["l7Protocols"], others].concat();
    let fields = rule.only(&[&KNOWN[..], peers].concat(), &unsupported, errors);
    let action = parse_action(&rule, errors);
    let name = rule.text("name", errors);
    let peers = parse_peers(&rule, direction, context.namespace, errors);
    let services = parse_services(&rule, errors);
    let applied_to = parse_rule_applied_to(&rule, context, errors);
    fields?;
    let mut rule = Rule {
        name: name?.map(str::to_owned),
        action: action?,
        applied_to: applied_to?,
        peers: peers?,
        services: services?,
        realization: Realization::Full,
    };
    if context.rejected {
        rule.realization = Realization::None;
    } else if has_error(&rule) {
        rule.realization = if rule.action.denies() {
            Realization::None
        } else {
            Realization::Partial
        };
    }
    Ok(rule)
}

fn has_error(rule: &Rule) -> bool {
    let is_unsupported = |peer: &Peer| matches!(peer, Peer::Unsupported { .. });
    rule.applied_to.contains(&AppliedTo::Unsupported)
        || rule.peers.iter().flatten().any(is_unsupported)
        || rule
            .services
            .iter()
            .flatten()
            .any(|service| *service == Service::Unsupported)
}

fn parse_action(rule: &Fields<'_>, errors: &mut Errors) -> Result<Action, Rejected> {
    match rule.text("action", errors)? {
        None => Err(rule.reject("action", PolicyError::Missing, errors)),
        Some(name) => {
            Action::from_name(name).ok_or_else(|| rule.reject("action", PolicyError::Action, errors))
        }
    }
}

fn parse_rule_applied_to(
    rule: &Fields<'_>,
    context: &Context<'_>,
    errors: &mut Errors,
) -> Result<Arc<[AppliedTo]>, Rejected> {
    let own = parse_applied_to(rule, context.namespace, errors)?;
    match (own.is_empty(), context.applied_to.is_empty()) {
        (true, false) => Ok(Arc::clone(context.applied_to)),
        (false, true) => Ok(own.into()),
        (true, true) if context.rejected => Err(Rejected),
        (true, true) => Err(rule.reject("appliedTo", PolicyError::Missing, errors)),
        (false, false) => {
            let other = "spec.appliedTo";
            Err(rule.reject("appliedTo", PolicyError::Excludes { other }, errors))
        }
    }
}

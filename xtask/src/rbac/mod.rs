//! Least privilege: the roles in `deploy/` grant exactly the uses in the API servers' audit logs.

mod allowlist;
mod audit_usage;
mod compare;
mod grant;

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::BufReader,
    path::PathBuf,
};

use anyhow::{Context as _, Result, bail};

use self::grant::Role;
use crate::cmd;

/// The files with roles, below `deploy/base`.
const ROLE_FILES: [(Role, &str); 6] = [
    (Role::Leader, "leader/rbac.yaml"),
    (Role::Leader, "leader_isolation/rbac.yaml"),
    (Role::MemberAccess, "leader/member_role.yaml"),
    (Role::MemberAccess, "member_namespace/rbac.yaml"),
    (Role::Member, "member/rbac.yaml"),
    (Role::Gateway, "gateway/rbac.yaml"),
];

/// Compares `deploy/` with the logs of clusters on which all tests have run; prints the figures.
pub(crate) fn check(logs: &[PathBuf]) -> Result<()> {
    let mut uses = BTreeSet::new();
    for log in logs {
        let file = File::open(log).with_context(|| log.display().to_string())?;
        audit_usage::read(BufReader::new(file), &mut uses).with_context(|| log.display().to_string())?;
    }
    if uses.is_empty() {
        bail!(
            "no request of the project's accounts in {} audit logs",
            logs.len()
        );
    }
    let found = compare::compare(
        &read_grants()?,
        &uses,
        allowlist::EXEMPTIONS,
        allowlist::EXPECTED_DENIALS,
    );
    for refusal in &found.expected_denials {
        println!("denied as expected: {refusal}");
    }
    println!("{found}");
    if !found.violations.is_empty() {
        bail!("{}", Vec::from_iter(found.violations).join("\n"));
    }
    Ok(())
}

fn read_grants() -> Result<BTreeSet<grant::Grant>> {
    let mut grants = BTreeSet::new();
    for (role, file) in ROLE_FILES {
        let path = cmd::workspace().join("deploy/base").join(file);
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        grants.extend(grant::parse(role, &text).with_context(|| path.display().to_string())?);
    }
    Ok(grants)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_role_has_wildcards_and_every_exemption_has_a_grant() {
        let grants = read_grants().unwrap();
        assert!(grants.len() > 50, "{}", grants.len());
        let found = compare::compare(
            &grants,
            &BTreeSet::new(),
            allowlist::EXEMPTIONS,
            allowlist::EXPECTED_DENIALS,
        );
        let idle: Vec<_> = found
            .violations
            .iter()
            .filter(|line| line.starts_with("exempted"))
            .collect();
        assert!(idle.is_empty(), "{idle:?}");
    }

    #[test]
    fn a_member_has_the_same_role_in_its_own_namespace() {
        let [common, own] = ["leader/member_role.yaml", "member_namespace/rbac.yaml"].map(|file| {
            let path = cmd::workspace().join("deploy/base").join(file);
            grant::parse(Role::MemberAccess, &fs::read_to_string(path).unwrap()).unwrap()
        });
        assert_eq!(common, own);
    }

    #[test]
    fn every_exemption_has_a_reason() {
        let whys = allowlist::EXEMPTIONS
            .iter()
            .map(|one| one.reason)
            .chain(allowlist::EXPECTED_DENIALS.iter().map(|one| one.reason));
        assert!(whys.into_iter().all(|why| why.len() > 20));
    }
}

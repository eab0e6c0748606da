//! Least privilege: what the roles of `deploy/` grant is what the API servers' audit logs say was used.

mod compare;
mod excused;
mod grant;
mod used;

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::BufReader,
    path::PathBuf,
};

use anyhow::{Context as _, Result, bail};

use self::grant::Role;
use crate::run;

/// The files with roles.
const FILES: [(Role, &str); 4] = [
    (Role::Leader, "leader/rbac.yaml"),
    (Role::Access, "leader/member_role.yaml"),
    (Role::Member, "member/rbac.yaml"),
    (Role::Gateway, "gateway/rbac.yaml"),
];

/// Compares `deploy/` with the logs of clusters on which all tests have run; prints the figures.
pub(crate) fn check(logs: &[PathBuf]) -> Result<()> {
    let mut uses = BTreeSet::new();
    for log in logs {
        let file = File::open(log).with_context(|| log.display().to_string())?;
        used::read(BufReader::new(file), &mut uses).with_context(|| log.display().to_string())?;
    }
    if uses.is_empty() {
        bail!("no request of ours in {} audit logs", logs.len());
    }
    let found = compare::compare(&granted()?, &uses, excused::GRANTS, excused::REFUSALS);
    for refusal in &found.meant {
        println!("refused as it should: {refusal}");
    }
    println!("{found}");
    if !found.wrong.is_empty() {
        bail!("{}", Vec::from_iter(found.wrong).join("\n"));
    }
    Ok(())
}

fn granted() -> Result<BTreeSet<grant::Grant>> {
    let mut grants = BTreeSet::new();
    for (role, file) in FILES {
        let path = run::workspace().join("deploy/base").join(file);
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        grants.extend(grant::parse(role, &text).with_context(|| path.display().to_string())?);
    }
    Ok(grants)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_role_has_wildcards_and_every_excuse_is_for_a_grant() {
        let grants = granted().unwrap();
        assert!(grants.len() > 50, "{}", grants.len());
        let found = compare::compare(&grants, &BTreeSet::new(), excused::GRANTS, excused::REFUSALS);
        let idle: Vec<_> = found
            .wrong
            .iter()
            .filter(|line| line.starts_with("excused"))
            .collect();
        assert!(idle.is_empty(), "{idle:?}");
    }

    #[test]
    fn every_excuse_says_why() {
        let whys = excused::GRANTS
            .iter()
            .map(|one| one.why)
            .chain(excused::REFUSALS.iter().map(|one| one.why));
        assert!(whys.into_iter().all(|why| why.len() > 20));
    }
}

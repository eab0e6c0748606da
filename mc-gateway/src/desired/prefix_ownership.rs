//! Ownership of prefixes: the first owner wins, overlapping prefixes of others are rejected.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::cidr::{overlaps, parse_prefix};
use crate::objects::FieldError;

/// Assigned prefixes with their owners.
#[derive(Clone, Debug, Default)]
pub(super) struct PrefixOwners {
    owners: Vec<(IpNet, String)>,
}

impl PrefixOwners {
    /// Assigns `prefix` to `owner` unconditionally.
    pub(super) fn assign(&mut self, prefix: IpNet, owner: &str) {
        self.owners.push((prefix, owner.to_owned()));
    }

    /// Reverts [`Self::parse_and_assign`].
    pub(super) fn release(&mut self, prefix: IpNet, owner: &str) {
        self.owners
            .retain(|(taken, by)| !(*taken == prefix && by == owner));
    }

    /// The first prefix of another owner that overlaps `prefix`, with its owner.
    pub(super) fn conflict(&self, prefix: IpNet, owner: &str) -> Option<&(IpNet, String)> {
        self.owners
            .iter()
            .find(|(taken, by)| by != owner && overlaps(*taken, prefix))
    }

    /// The reason why `addr` cannot be an address of `owner`, if it is in a prefix of another one.
    pub(super) fn address_conflict(&self, addr: IpAddr, owner: &str) -> Option<String> {
        let (taken, by) = self.conflict(addr.into(), owner)?;
        Some(format!("is an address in {taken} of {by}"))
    }

    /// Parses `text` and assigns the prefix to `owner`, or rejects it.
    pub(super) fn parse_and_assign(
        &mut self,
        owner: &str,
        field: &str,
        text: &str,
        rejected: &mut Vec<FieldError>,
    ) -> Option<IpNet> {
        let result = parse_prefix(text)
            .map_err(|error| error.to_string())
            .and_then(|prefix| match self.conflict(prefix, owner) {
                Some((taken, by)) => Err(format!("overlaps {taken} of {by}")),
                None => Ok(prefix),
            });
        match result {
            Ok(prefix) => {
                self.assign(prefix, owner);
                Some(prefix)
            }
            Err(reason) => {
                rejected.push(FieldError {
                    object: owner.to_owned(),
                    field: field.to_owned(),
                    value: text.to_owned(),
                    reason,
                });
                None
            }
        }
    }
}

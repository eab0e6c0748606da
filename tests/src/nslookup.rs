//! Parser of busybox's `nslookup` output that keeps duplicate records.

use std::{collections::BTreeSet, net::IpAddr};

/// An SRV record (RFC 2782).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Srv {
    /// The port.
    pub port: u16,
    /// The host name.
    pub target: String,
}

/// The records of one or more queries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// A and AAAA records.
    pub addresses: Vec<IpAddr>,
    /// SRV records.
    pub services: Vec<Srv>,
    /// Error codes of failed queries, such as `NXDOMAIN`.
    pub error_codes: Vec<String>,
}

impl Answer {
    /// Parses the output; an unknown line is an error.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut answer = Self::default();
        // The first `Address:` belongs to the server.
        let mut of_server = false;
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let unknown = || format!("unknown line `{line}` of nslookup");
            if line.starts_with("Server:") {
                of_server = true;
            } else if let Some(address) = line.strip_prefix("Address:") {
                if !of_server {
                    answer
                        .addresses
                        .push(address.trim().parse().map_err(|_| unknown())?);
                }
                of_server = false;
            } else if let Some((_, record)) = line.split_once("service = ") {
                answer.services.push(Srv::parse(record).ok_or_else(unknown)?);
            } else if let Some((_, code)) = line
                .split_once("can't find")
                .and_then(|(_, l)| l.rsplit_once(": "))
            {
                answer.error_codes.push(code.to_owned());
            } else if !line.starts_with("Name:")
                && !line.starts_with("*** Can't find")
                && line != "Non-authoritative answer:"
            {
                return Err(unknown());
            }
        }
        Ok(answer)
    }

    /// The addresses as a set; an error if there are duplicates or other records.
    pub fn only_addresses(&self) -> Result<BTreeSet<IpAddr>, String> {
        let set: BTreeSet<_> = self.addresses.iter().copied().collect();
        let once = set.len() == self.addresses.len();
        if once && self.services.is_empty() && self.error_codes.is_empty() {
            Ok(set)
        } else {
            Err(format!("{self:?}"))
        }
    }

    /// The SRV records as a set; an error if there are duplicates or other records.
    pub fn only_services(&self) -> Result<BTreeSet<Srv>, String> {
        let set: BTreeSet<_> = self.services.iter().cloned().collect();
        let once = set.len() == self.services.len();
        if once && self.addresses.is_empty() && self.error_codes.is_empty() {
            Ok(set)
        } else {
            Err(format!("{self:?}"))
        }
    }
}

impl Srv {
    /// Parses `priority weight port target`.
    fn parse(record: &str) -> Option<Self> {
        let mut words = record.split_whitespace().skip(2);
        let (port, target) = (words.next()?, words.next()?);
        Some(Self {
            port: port.parse().ok()?,
            target: target.trim_end_matches('.').to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: &str = "Server:\t\t10.20.0.10\nAddress:\t10.20.0.10:53\n\n";

    #[test]
    fn the_servers_address_is_not_an_answer() {
        let text = format!(
            "{SERVER}Name:\tweb.ns.svc.clusterset.local\nAddress: 10.20.1.2\nName:\tweb.ns.svc.clusterset.local\nAddress: 10.20.1.3\n\n"
        );
        let answer = Answer::parse(&text).unwrap();
        let wanted = ["10.20.1.2", "10.20.1.3"].map(|ip| ip.parse().unwrap());
        assert_eq!(answer.only_addresses(), Ok(wanted.into()));
        assert!(answer.only_services().is_err());
    }

    #[test]
    fn duplicate_records_are_an_error() {
        let record = "web.ns.svc.clusterset.local\tservice = 0 50 42 web.ns.svc.clusterset.local\n";
        let answer = Answer::parse(&format!("{SERVER}{record}\n")).unwrap();
        let wanted = Srv {
            port: 42,
            target: "web.ns.svc.clusterset.local".to_owned(),
        };
        assert_eq!(answer.only_services(), Ok(BTreeSet::from([wanted])));
        let twice = Answer::parse(&format!("{SERVER}{record}{record}\n")).unwrap();
        assert!(twice.only_services().is_err());
    }

    #[test]
    fn error_codes_are_kept_and_an_empty_answer_is_no_error() {
        let refused = format!("{SERVER}** server can't find web.ns.svc.clusterset.local.: NXDOMAIN\n\n");
        let answer = Answer::parse(&format!("{refused}{refused}")).unwrap();
        assert_eq!(answer.error_codes, ["NXDOMAIN", "NXDOMAIN"]);
        let none = format!("{SERVER}*** Can't find web.ns.svc.clusterset.local.: No answer\n\n");
        assert_eq!(Answer::parse(&none), Ok(Answer::default()));
        assert!(Answer::parse(";; connection timed out; no servers could be reached").is_err());
    }
}

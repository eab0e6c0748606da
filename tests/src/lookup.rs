//! What busybox's `nslookup` prints, record by record: nothing is sorted out on the way, so that repeated answers show.

use std::{collections::BTreeSet, net::IpAddr};

/// Where a Service is served (RFC 2782).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Srv {
    /// The port.
    pub port: u16,
    /// The name of the host.
    pub target: String,
}

/// The answers to one or several questions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// A and AAAA records.
    pub addresses: Vec<IpAddr>,
    /// SRV records.
    pub services: Vec<Srv>,
    /// Response codes of the questions that were refused: `NXDOMAIN`.
    pub refusals: Vec<String>,
}

impl Answer {
    /// Reads what `nslookup` printed; a line that is nothing it is known to print is an error.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut answer = Self::default();
        // The first `Address:` is the server's.
        let mut of_server = false;
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let unknown = || format!("nslookup printed `{line}`");
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
                answer.refusals.push(code.to_owned());
            } else if !line.starts_with("Name:")
                && !line.starts_with("*** Can't find")
                && line != "Non-authoritative answer:"
            {
                return Err(unknown());
            }
        }
        Ok(answer)
    }

    /// The addresses as a set, or a text that says what else was answered.
    pub fn only_addresses(&self) -> Result<BTreeSet<IpAddr>, String> {
        let set: BTreeSet<_> = self.addresses.iter().copied().collect();
        let once = set.len() == self.addresses.len();
        if once && self.services.is_empty() && self.refusals.is_empty() {
            Ok(set)
        } else {
            Err(format!("{self:?}"))
        }
    }

    /// The SRV records as a set, or a text that says what else was answered; the same one twice is something else.
    pub fn only_services(&self) -> Result<BTreeSet<Srv>, String> {
        let set: BTreeSet<_> = self.services.iter().cloned().collect();
        let once = set.len() == self.services.len();
        if once && self.addresses.is_empty() && self.refusals.is_empty() {
            Ok(set)
        } else {
            Err(format!("{self:?}"))
        }
    }
}

impl Srv {
    /// Reads `priority weight port target`.
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
    fn addresses_are_those_of_the_name_not_of_the_server() {
        let text = format!(
            "{SERVER}Name:\tweb.ns.svc.clusterset.local\nAddress: 10.20.1.2\nName:\tweb.ns.svc.clusterset.local\nAddress: 10.20.1.3\n\n"
        );
        let answer = Answer::parse(&text).unwrap();
        let wanted = ["10.20.1.2", "10.20.1.3"].map(|ip| ip.parse().unwrap());
        assert_eq!(answer.only_addresses(), Ok(wanted.into()));
        assert!(answer.only_services().is_err());
    }

    #[test]
    fn a_record_that_comes_twice_is_noticed() {
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
    fn refusals_are_counted_and_no_record_is_no_refusal() {
        let refused = format!("{SERVER}** server can't find web.ns.svc.clusterset.local.: NXDOMAIN\n\n");
        let answer = Answer::parse(&format!("{refused}{refused}")).unwrap();
        assert_eq!(answer.refusals, ["NXDOMAIN", "NXDOMAIN"]);
        let none = format!("{SERVER}*** Can't find web.ns.svc.clusterset.local.: No answer\n\n");
        assert_eq!(Answer::parse(&none), Ok(Answer::default()));
        assert!(Answer::parse(";; connection timed out; no servers could be reached").is_err());
    }
}

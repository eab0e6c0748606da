//! Discovery of the local cluster's Service CIDRs.

use ipnet::IpNet;
use k8s_openapi::api::{
    core::v1::{Service, ServicePort, ServiceSpec},
    networking::v1::ServiceCIDR,
};
use kube::{Api, Client, api::PostParams, core::ObjectMeta};
use mc_api::validation;
use mc_kube::error_chain;

/// The Service CIDR is unknown.
#[derive(Debug, thiserror::Error)]
pub enum DiscoveryError {
    /// The API server's answer does not contain it.
    #[error(
        "the Service CIDR of this cluster is unknown ({cause}); set serviceCIDR in the configuration file"
    )]
    NoAnswer {
        /// The answer or error.
        cause: String,
    },
}

/// The Service CIDRs, the first of each IP family: from the `ServiceCIDR` API, else the IPv4 one from the API server's
/// rejection of an invalid cluster IP.
pub async fn discover(client: &Client, namespace: &str) -> Result<Vec<IpNet>, DiscoveryError> {
    let api: Api<ServiceCIDR> = Api::all(client.clone());
    if let Ok(Some(found)) = api.get_opt("kubernetes").await {
        let cidrs = found.spec.and_then(|s| s.cidrs).unwrap_or_default();
        let found = first_of_each_family(&cidrs);
        if !found.is_empty() {
            return Ok(found);
        }
    }
    let api: Api<Service> = Api::namespaced(client.clone(), namespace);
    let params = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let cause = match api.create(&params, &invalid_service()).await {
        Ok(_) => "the API server accepted cluster IP 0.0.0.0".to_owned(),
        Err(kube::Error::Api(status)) => match parse_range(&status.message) {
            Some(cidr) => return Ok(vec![cidr]),
            None => status.message.clone(),
        },
        Err(error) => error_chain(&error),
    };
    Err(DiscoveryError::NoAnswer { cause })
}

fn first_of_each_family(cidrs: &[String]) -> Vec<IpNet> {
    let mut found: Vec<IpNet> = Vec::new();
    for cidr in cidrs.iter().filter_map(|c| validation::cidr(c).ok()) {
        if found.iter().all(|known| is_ipv4(known) != is_ipv4(&cidr)) {
            found.push(cidr);
        }
    }
    found
}

fn invalid_service() -> Service {
    Service {
        metadata: ObjectMeta {
            name: Some("invalid-svc".to_owned()),
            ..ObjectMeta::default()
        },
        spec: Some(ServiceSpec {
            cluster_ip: Some("0.0.0.0".to_owned()),
            ports: Some(vec![ServicePort {
                port: 443,
                ..ServicePort::default()
            }]),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

fn parse_range(message: &str) -> Option<IpNet> {
    let (_, after) = message.split_once("valid IPs is ")?;
    let end = after
        .find(|c: char| !(c.is_ascii_hexdigit() || "./:".contains(c)))
        .unwrap_or(after.len());
    validation::cidr(after.get(..end)?.trim_end_matches('.'))
        .ok()
        .filter(is_ipv4)
}

fn is_ipv4(cidr: &IpNet) -> bool {
    matches!(cidr, IpNet::V4(_))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_range_is_parsed_from_the_error() {
        let message = "Service \"invalid-svc\" is invalid: spec.clusterIPs: Invalid value: [\"0.0.0.0\"]: failed to \
            allocate IP 0.0.0.0: the provided network does not match the current range. The range of valid IPs is ";
        for end in ["10.96.0.0/12", "10.96.0.0/12.", "10.96.0.0/12, try again"] {
            assert_eq!(
                parse_range(&format!("{message}{end}")).unwrap().to_string(),
                "10.96.0.0/12"
            );
        }
        let cidrs = ["10.96.0.0/16", "10.97.0.0/16", "nonsense", "fd00:96::/112"].map(str::to_owned);
        let found: Vec<_> = first_of_each_family(&cidrs)
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(found, ["10.96.0.0/16", "fd00:96::/112"]);
        assert_eq!(parse_range("denied"), None);
        assert_eq!(parse_range("valid IPs is fd00::/108"), None);
    }
}

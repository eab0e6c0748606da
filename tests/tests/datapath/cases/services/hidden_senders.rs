//! Services that are left to the service proxy, which would hide their clients from network policies.

use mc_gateway_common::{
    abi::{
        ACTION_SERVICE, CONFIG_ALL_SERVICES, CONFIG_IDENTITY_LOST, PREFIX_POLICY,
        service::{SERVICE_IDENTITY_LOST, SERVICE_STACK},
    },
    verdict::DropReason,
};

use super::{super::Expect, CLIENT, Cases, ON_NODE, PROXIED, SCTP, WEB};
use crate::{
    fixture::{POD_WEST, SERVICE_HERE},
    packets::{Ip, tcp_syn},
};

impl Cases<'_> {
    pub(super) fn hidden_senders(&mut self) {
        let mut hidden = self.gateway();
        for service in hidden.services.services.values_mut() {
            if service.flags & SERVICE_STACK != 0 {
                service.flags |= SERVICE_IDENTITY_LOST;
            }
        }
        let sctp = |port| {
            Ip::new(
                self.addr_of(POD_WEST),
                self.addr_of(SERVICE_HERE),
                SCTP,
                tcp_syn(CLIENT, port),
            )
        };
        let (known_sctp, sctp_elsewhere) = (sctp(WEB), sctp(WEB + 1));
        let lost = Expect::Drop(DropReason::IdentityLost);
        for (name, inner) in [
            ("a connection to a port of the service proxy", self.syn(PROXIED)),
            ("SCTP", known_sctp),
        ] {
            let tunnel = self.sent_by_west(&inner);
            let name = format!("hidden sender: {name}");
            self.push(&name, hidden.clone(), &tunnel, lost.clone());
        }
        let inner = self.ack(PROXIED);
        let data = self.sent_by_west(&inner);
        self.push_delivery(
            "hidden sender: a connection stays open",
            hidden.clone(),
            &data,
            &inner,
        );
        let syn = self.sent_by_west(&self.syn(WEB));
        self.push_selection("hidden sender: a translated port", hidden.clone(), &syn, ON_NODE);
        // The Service port has no entry, and policies select some Pod.
        let mut open = self.gateway();
        if let Some(config) = &mut open.config {
            config.flags |= CONFIG_ALL_SERVICES | CONFIG_IDENTITY_LOST;
        }
        for (name, inner) in [
            ("a connection", self.syn(444)),
            ("a datagram", self.datagram(WEB)),
            ("SCTP", sctp_elsewhere),
        ] {
            let tunnel = self.sent_by_west(&inner);
            let name = format!("hidden sender: {name}, all Services open");
            self.push(&name, open.clone(), &tunnel, lost.clone());
        }
        let inner = self.ack(444);
        let data = self.sent_by_west(&inner);
        self.push_delivery(
            "hidden sender: a connection stays open, all Services open",
            open,
            &data,
            &inner,
        );
        // Policies select another Pod of this node, so `from_remote` decides on packets to Service addresses.
        let mut policed = self.gateway();
        for prefix in policed.prefixes.values_mut() {
            if prefix.action == ACTION_SERVICE {
                prefix.flags |= PREFIX_POLICY;
            }
        }
        let inner = self.syn(PROXIED);
        let tunnel = self.sent_by_west(&inner);
        self.push_delivery(
            "to the stack: a port of the service proxy without protected Pods",
            policed,
            &tunnel,
            &inner,
        );
    }
}

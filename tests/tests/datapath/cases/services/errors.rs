//! ICMP errors about flows to Services.

use super::*;

impl Cases<'_> {
    /// "Port unreachable" from `src` to `dst` about the first bytes of a datagram. The quoted UDP checksum is that of
    /// the packet at its receiver, even after a translation of the quote.
    fn error(&self, src: [u8; 4], dst: [u8; 4], from: ([u8; 4], u16), to: ([u8; 4], u16)) -> Ip {
        let v6 = self.shape.inner_v6;
        let mut quoted = Ip::new(
            self.addr_of(from.0),
            self.addr_of(to.0),
            UDP,
            udp(from.1, to.1, &[0x11; 8]),
        );
        quoted.payload[6..8].copy_from_slice(&[0xab, 0xcd]);
        let mut message = if v6 {
            vec![1, 4, 0, 0, 0, 0, 0, 0]
        } else {
            vec![3, 3, 0, 0, 0, 0, 0, 0]
        };
        message.extend_from_slice(&quoted.bytes());
        let (src, dst) = (self.addr_of(src), self.addr_of(dst));
        if v6 {
            return Ip::new(src, dst, 58, with_checksum(src, dst, 58, message, 2));
        }
        let sum = checksum(&message);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        Ip::new(src, dst, 1, message)
    }

    pub(super) fn errors(&mut self) {
        let (client, service) = ((POD_WEST, CLIENT), (SERVICE_HERE, DATAGRAMS));
        let pod = (POD_NODE, POD_PORT);
        let about_reply = self.error(POD_WEST, SERVICE_HERE, service, client);
        let tunnel = self.sent_by_west(&about_reply);
        self.push_selection("an error about a reply", self.gateway(), &tunnel, BY_UDP);
        let echo = self.error(POD_WEST, SERVICE_HERE, client, service);
        let tunnel = self.sent_by_west(&echo);
        let not_exported = Expect::Drop(DropReason::NotExported);
        self.push(
            "an error about a packet of another sender",
            self.gateway(),
            &tunnel,
            not_exported,
        );
        let other = self.error(POD_WEST, SERVICE_HERE, (SERVICE_HERE, 444), client);
        let tunnel = self.sent_by_west(&other);
        let not_exported = Expect::Drop(DropReason::NotExported);
        self.push(
            "an error about a port that is not exported",
            self.gateway(),
            &tunnel,
            not_exported,
        );
        let tunnel = self.sent_by_gateway(BY_UDP, &about_reply);
        let translated = self.error(POD_WEST, POD_NODE, pod, client);
        self.push_delivery("an error to the Pod", self.node(), &tunnel, &translated);
        let tunnel = self.sent_by_gateway(BY_UDP, &other);
        self.push(
            "an error about another port",
            self.node(),
            &tunnel,
            Expect::Drop(DropReason::ForeignBackend),
        );
        let flow = || self.node_with_flow(DATAGRAMS, UDP);
        let of_pod = self.error(POD_NODE, POD_WEST, client, pod);
        let translated = self.error(SERVICE_HERE, POD_WEST, client, service);
        let (of_pod_flow, of_node_flow) = (flow(), flow());
        self.push_reply("an error of the Pod", of_pod_flow, &of_pod, &translated);
        let of_node = self.error([192, 168, 1, 2], POD_WEST, client, pod);
        self.push_reply("an error of the Pod's node", of_node_flow, &of_node, &translated);
        self.push_reply("an error about a direct packet", self.node(), &of_pod, &of_pod);
    }
}

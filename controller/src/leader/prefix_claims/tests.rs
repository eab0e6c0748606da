//! Claims over time, and their order.

use proptest::prelude::*;

use super::*;

const NOW: &str = "2026-01-01T12:00:00Z";

fn at(seconds: i64) -> Timestamp {
    let now: Timestamp = NOW.parse().unwrap();
    now.checked_add(SignedDuration::from_secs(seconds)).unwrap()
}

fn nets(prefixes: &[&str]) -> Vec<IpNet> {
    prefixes.iter().map(|prefix| prefix.parse().unwrap()).collect()
}

fn announce<'a>(cluster: &'a str, created: i64, prefixes: &[&str]) -> Announcement<'a> {
    Announcement {
        cluster,
        since: Some(at(created)),
        prefixes: nets(prefixes),
    }
}

fn rules(now: i64, members: &[&'static str]) -> Rules<'static> {
    Rules {
        now: at(now),
        members: members.iter().copied().collect(),
        allowed: BTreeMap::new(),
    }
}

fn allow(rules: &mut Rules<'_>, cluster: &str, ranges: &[&str]) {
    rules.allowed.insert(cluster.to_owned(), nets(ranges));
}

fn owned(claims: &PrefixClaims, cluster: &str) -> Vec<String> {
    let claims = claims.clusters.get(cluster).into_iter().flatten();
    claims.map(|(prefix, _)| prefix.to_string()).collect()
}

fn errors(decision: &Decision, cluster: &str) -> Vec<String> {
    let errors = decision.refused.get(cluster).into_iter().flatten();
    errors.map(ToString::to_string).collect()
}

#[test]
fn the_first_cluster_owns_a_prefix_also_after_its_export_is_created_again() {
    let members = rules(0, &["east", "west"]);
    // Without a record the older export is first.
    let both = vec![
        announce("east", 5, &["10.1.0.0/16"]),
        announce("west", 1, &["10.1.2.0/24"]),
    ];
    let first = PrefixClaims::default().decide(both, &members);
    assert_eq!(owned(&first.claims, "west"), ["10.1.2.0/24"]);
    assert_eq!(
        errors(&first, "east"),
        ["10.1.0.0/16 overlaps 10.1.2.0/24, which cluster \"west\" announced first"]
    );
    // The record is decisive afterwards: west's export was deleted and created again.
    let again = vec![
        announce("east", 5, &["10.1.0.0/16"]),
        announce("west", 90, &["10.1.2.0/24"]),
    ];
    let second = first.claims.decide(again, &members);
    assert_eq!(second.claims, first.claims);
}

#[test]
fn a_member_without_an_announcement_keeps_its_prefixes() {
    let claims = PrefixClaims::of_announced([("west", nets(&["10.1.0.0/16"]))]);
    let attack = || vec![announce("east", 0, &["10.1.0.0/16"])];
    for seconds in [0, 3600, 1_000_000] {
        let decision = claims.decide(attack(), &rules(seconds, &["east", "west"]));
        assert_eq!(decision.claims, claims);
        assert_eq!(errors(&decision, "east").len(), 1);
        assert_eq!(decision.next, None);
    }
    // After its departure, later.
    let left = claims.decide(attack(), &rules(0, &["east"]));
    assert_eq!(owned(&left.claims, "east"), Vec::<String>::new());
    assert_eq!(left.next, Some(at(30)));
    let before = left.claims.decide(attack(), &rules(29, &["east"]));
    assert_eq!(before.claims, left.claims);
    let after = left.claims.decide(attack(), &rules(30, &["east"]));
    assert_eq!(owned(&after.claims, "east"), ["10.1.0.0/16"]);
    assert_eq!(owned(&after.claims, "west"), Vec::<String>::new());
    // Unless it returns.
    let returned = left.claims.decide(attack(), &rules(29, &["east", "west"]));
    assert_eq!(returned.claims, claims);
}

#[test]
fn a_clock_set_back_does_not_prolong_a_claim() {
    let mut claims = PrefixClaims::default();
    claims.insert("west", nets(&["10.1.0.0/16"])[0], Some(at(10_000)));
    let decision = claims.decide(vec![], &rules(0, &[]));
    assert_eq!(decision.next, Some(at(30)));
}

#[test]
fn a_prefix_that_a_cluster_no_longer_announces_is_released_after_a_delay() {
    let claims = PrefixClaims::of_announced([("west", nets(&["10.0.0.0/8", "10.96.0.0/12"]))]);
    let members = |now| rules(now, &["east", "west"]);
    // West corrects its Pod CIDR.
    let now = || {
        vec![
            announce("east", 0, &["10.1.0.0/16", "10.2.0.0/16"]),
            announce("west", 50, &["10.1.0.0/16", "10.96.0.0/12"]),
        ]
    };
    let first = claims.decide(now(), &members(0));
    assert_eq!(first.next, Some(at(600)));
    assert_eq!(errors(&first, "east").len(), 2);
    let second = first.claims.decide(now(), &members(600));
    // The part that west announces stays its own, although east's export is older.
    assert_eq!(owned(&second.claims, "west"), ["10.1.0.0/16", "10.96.0.0/12"]);
    assert_eq!(owned(&second.claims, "east"), ["10.2.0.0/16"]);
    assert_eq!(errors(&second, "east").len(), 1);
}

#[test]
fn aggregated_prefixes_replace_their_parts() {
    let claims = PrefixClaims::of_announced([("west", nets(&["10.1.2.0/24", "10.1.3.0/24"]))]);
    let decision = claims.decide(vec![announce("west", 0, &["10.1.2.0/23"])], &rules(0, &["west"]));
    assert_eq!(owned(&decision.claims, "west"), ["10.1.2.0/23"]);
    // Until the record has it the cluster has the parts.
    let both = decision.claims.intersection(&claims);
    assert_eq!(owned(&both, "west"), ["10.1.2.0/24", "10.1.3.0/24"]);
    assert_eq!(both.within("west", nets(&["10.1.2.0/23"])[0]).len(), 2);
}

#[test]
fn an_allow_list_reserves_ranges_and_ends_claims_of_others() {
    let claims = PrefixClaims::of_announced([("east", nets(&["10.1.0.0/16", "10.7.0.0/16"]))]);
    let both = || {
        vec![
            announce("east", 0, &["10.1.0.0/16", "10.7.0.0/16"]),
            announce("west", 9, &["10.1.0.0/16", "10.9.0.0/16"]),
        ]
    };
    let mut rules = rules(0, &["east", "west"]);
    allow(&mut rules, "west", &["10.0.0.0/14"]);
    let decision = claims.decide(both(), &rules);
    assert_eq!(owned(&decision.claims, "west"), ["10.1.0.0/16"]);
    assert_eq!(owned(&decision.claims, "east"), ["10.7.0.0/16"]);
    assert_eq!(
        errors(&decision, "east"),
        ["10.1.0.0/16 overlaps 10.0.0.0/14, which is reserved to cluster \"west\""]
    );
    assert_eq!(
        errors(&decision, "west"),
        ["10.9.0.0/16 is outside the ranges allowed to the cluster"]
    );
    // Two lists with the same range: the first owner keeps it.
    allow(&mut rules, "east", &["10.0.0.0/8"]);
    let shared = claims.decide(both(), &rules);
    assert_eq!(owned(&shared.claims, "east"), ["10.1.0.0/16", "10.7.0.0/16"]);
    // An empty list allows nothing.
    allow(&mut rules, "east", &[]);
    let nothing = claims.decide(both(), &rules);
    assert_eq!(owned(&nothing.claims, "east"), Vec::<String>::new());
}

#[test]
fn the_claims_of_a_cluster_are_limited() {
    let prefixes = (0..=MAX_CLAIMS).map(|i| format!("10.{}.{}.0/24", i >> 8, i & 255));
    let prefixes: Vec<IpNet> = prefixes.map(|prefix| prefix.parse().unwrap()).collect();
    let announcement = Announcement {
        cluster: "east",
        since: None,
        prefixes,
    };
    let decision = PrefixClaims::default().decide(vec![announcement], &rules(0, &["east"]));
    assert_eq!(owned(&decision.claims, "east").len(), MAX_CLAIMS);
    assert_eq!(
        errors(&decision, "east"),
        ["10.2.0.0/24: the cluster has 512 prefixes already"]
    );
    // A prefix that contains some of them needs no further claim.
    let wide = announce("east", 0, &["10.0.0.0/16"]);
    let decision = decision.claims.decide(vec![wide], &rules(0, &["east"]));
    assert_eq!(errors(&decision, "east"), Vec::<String>::new());
    assert_eq!(owned(&decision.claims, "east").len(), MAX_CLAIMS - 255);
}

#[test]
fn malformed_and_contradictory_records_are_rejected() {
    for (text, why) in [
        (
            "10.1.0.0",
            "data[\"east\"], line 1: \"10.1.0.0\" is not \"prefix [time]\"",
        ),
        ("10.2.0.0/16\n10.3.0.0/16 soon", "line 2: \"10.3.0.0/16 soon\""),
        ("10.2.0.0/16 2026-01-01T12:00:00Z 1", "line 1"),
        (
            "10.1.2.0/24",
            "10.1.2.0/24 overlaps 10.1.0.0/16 of cluster \"west\"",
        ),
    ] {
        let data = [
            ("east".to_owned(), text.to_owned()),
            ("west".to_owned(), "10.1.0.0/16\n10.1.4.0/24\n".to_owned()),
        ];
        let error = PrefixClaims::parse(&data.into()).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}

fn prefix() -> impl Strategy<Value = IpNet> {
    (0_u8..4, 0_u8..4, 13_u8..=24).prop_map(|(a, b, length)| {
        let net: IpNet = format!("10.{a}.{b}.0/{length}").parse().unwrap();
        net.trunc()
    })
}

proptest! {
    /// Over a history of announcements no two clusters own an address, a decision is final, and the record round-trips.
    #[test]
    fn no_address_has_two_owners(
        history in proptest::collection::vec(
            (proptest::collection::vec(proptest::collection::vec(prefix(), 0..4), 3), 0_u8..8, 0_i64..900),
            1..6,
        ),
    ) {
        let clusters = ["a", "b", "c"];
        let mut claims = PrefixClaims::default();
        let mut now = 0;
        for (announced, members, seconds) in history {
            now += seconds;
            let is_member = |i: &usize| members & (1 << i) != 0;
            let rules = Rules {
                now: at(now),
                members: (0..3).filter(is_member).map(|i| clusters[i]).collect(),
                allowed: BTreeMap::new(),
            };
            let announcements = || -> Vec<_> {
                let all = announced.iter().enumerate().filter(|(i, _)| is_member(i));
                all.map(|(i, prefixes)| Announcement {
                    cluster: clusters[i],
                    since: Some(at(9 - i64::try_from(i).unwrap())),
                    prefixes: prefixes.clone(),
                })
                .collect()
            };
            let decision = claims.decide(announcements(), &rules);
            prop_assert_eq!(decision.claims.first_overlap(), None);
            prop_assert_eq!(PrefixClaims::parse(&decision.claims.format()).unwrap(), decision.claims.clone());
            prop_assert_eq!(&decision.claims.decide(announcements(), &rules).claims, &decision.claims);
            // Each announced prefix is owned as a whole or refused.
            for announcement in announcements() {
                let refused = decision.refused.get(announcement.cluster).map_or(0, Vec::len);
                let owned = announcement.prefixes.iter();
                let owned = owned.filter(|p| decision.claims.is_owned(announcement.cluster, **p)).count();
                prop_assert!(owned + refused >= announcement.prefixes.len());
            }
            claims = decision.claims;
        }
    }
}

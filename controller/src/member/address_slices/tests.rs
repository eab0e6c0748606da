use super::*;

/// The slices of the API server.
#[derive(Clone, Debug, Default)]
struct Slices(BTreeMap<String, AddressGroupSliceSpec>);

impl Slices {
    fn changes(&self, pods: &PodAddresses) -> Vec<SliceChange> {
        let slices = self.0.iter().map(|(name, spec)| (name.as_str(), spec)).collect();
        let mut changes = changes(&slices, pods);
        // Additions first, as the applier executes them.
        changes.sort_by_key(|change| matches!(change, SliceChange::Delete(_)));
        changes
    }

    fn apply(&mut self, change: &SliceChange) {
        match change {
            SliceChange::Write(name, spec) => {
                self.0.insert(name.clone(), spec.clone());
            }
            SliceChange::Delete(name) => {
                self.0.remove(name);
            }
        }
    }

    /// Applies plans until the slices are complete; returns the number of writes.
    fn settle(&mut self, pods: &PodAddresses) -> usize {
        let mut writes = 0;
        for _ in 0..4 {
            let changes = self.changes(pods);
            if changes.is_empty() {
                assert_eq!(self.resolve(), **pods);
                return writes;
            }
            writes += changes.len();
            for change in &changes {
                self.apply(change);
            }
        }
        panic!("the slices change without end: {:?}", self.changes(pods));
    }

    /// The attributes of each address as an agent sees them: of several the one in the highest revision.
    fn resolve(&self) -> BTreeMap<IpAddr, Arc<PodAttributes>> {
        let mut specs: Vec<_> = self.0.values().collect();
        specs.sort_by_key(|spec| spec.revision);
        specs
            .iter()
            .flat_map(|spec| Content::parse(spec).addresses)
            .collect()
    }
}

fn labelled(app: &str, padding: usize) -> Arc<PodAttributes> {
    Arc::new(PodAttributes {
        namespace: "shop".to_owned(),
        labels: [
            ("app".to_owned(), app.to_owned()),
            ("pad".to_owned(), "x".repeat(padding)),
        ]
        .into(),
        service_account: "default".to_owned(),
        ports: Vec::new(),
    })
}

fn addr(number: u32) -> IpAddr {
    IpAddr::from((0x0a00_0000 + number).to_be_bytes())
}

fn pods(all: impl IntoIterator<Item = (u32, Arc<PodAttributes>)>) -> PodAddresses {
    Arc::new(
        all.into_iter()
            .map(|(number, attributes)| (addr(number), attributes))
            .collect(),
    )
}

#[test]
fn pods_with_equal_attributes_share_slices_of_a_limited_size() {
    let (web, db) = (labelled("web", 0), labelled("db", 0));
    let all = (0..250)
        .map(|n| (n, web.clone()))
        .chain((250..300).map(|n| (n, db.clone())));
    let mut slices = Slices::default();
    assert_eq!(slices.settle(&pods(all)), 3);
    let sizes: Vec<_> = slices
        .0
        .values()
        .map(|spec| Content::parse(spec).addresses.len())
        .collect();
    assert_eq!(sizes, [100, 100, 100]);
    assert!(slices.0.values().all(|spec| spec.revision == 1));
    assert_eq!(slices.settle(&pods([])), 3, "empty slices are deleted");
    assert!(slices.0.is_empty());
}

#[test]
fn a_change_of_labels_is_one_write() {
    let (web, db) = (labelled("web", 0), labelled("db", 0));
    let mut slices = Slices::default();
    slices.settle(&pods((0..250).map(|n| (n, web.clone()))));
    let kind_of = |number| if number == 120 { &db } else { &web };
    let all = pods((0..250).map(|n| (n, kind_of(n).clone())));
    let changes = slices.changes(&all);
    let [SliceChange::Write(name, spec)] = &changes[..] else {
        panic!("{changes:?}")
    };
    assert_eq!((name.as_str(), spec.revision), ("pods-1", 2));
    assert_eq!(slices.settle(&all), 1);
}

#[test]
fn a_new_pod_joins_its_like_and_a_full_slice_gets_none() {
    let (web, db) = (labelled("web", 0), labelled("db", 0));
    let all = |count| {
        let web = (0..count).map(|n| (n, web.clone()));
        pods(web.chain((1000..1099).map(|n| (n, db.clone()))))
    };
    let mut slices = Slices::default();
    slices.settle(&all(60));
    let first: Vec<_> = slices.changes(&all(61));
    assert_eq!(first.len(), 1, "{first:?}");
    slices.settle(&all(61));
    let groups: Vec<_> = slices.0.values().map(|spec| spec.groups.len()).collect();
    assert_eq!(groups, [2, 1], "{slices:?}");
    // Labels, too, fill a slice.
    let wide = pods((0..4).map(|n| (n, labelled(&n.to_string(), 5_000))));
    let mut slices = Slices::default();
    assert_eq!(slices.settle(&wide), 4);
}

#[test]
fn an_edited_slice_is_restored_and_of_two_with_an_address_the_newer_stays() {
    let all = pods((0..3).map(|n| (n, labelled("web", 0))));
    let mut slices = Slices::default();
    slices.settle(&all);
    let good = slices.0["pods-0"].groups.clone();
    let edits: [fn(&mut AddressGroupSliceSpec); 4] = [
        |spec| spec.groups[0].addresses.push("10.0.0.1/32".to_owned()),
        |spec| spec.groups[0].addresses.swap(0, 1),
        |spec| spec.groups.clear(),
        |spec| spec.complete = true,
    ];
    for edit in edits {
        edit(slices.0.get_mut("pods-0").unwrap());
        assert_eq!(slices.settle(&all), 1, "{slices:?}");
        assert_eq!(slices.0["pods-0"].groups, good);
    }
    let mut copy = slices.0["pods-0"].clone();
    copy.revision += 1;
    slices.0.insert("copy".to_owned(), copy);
    assert_eq!(slices.changes(&all), [SliceChange::Delete("pods-0".to_owned())]);
}

/// An agent sees the writes one by one. Between two of them each address has its old or its new attributes, and it is
/// never unknown while its Pod runs; also if a controller stops after any write and another one plans anew.
#[test]
fn no_address_is_unknown_or_wrong_between_two_writes() {
    let mut seed = 7_u64;
    let mut random = move |below: u64| {
        // Constants of PCG (O'Neill 2014).
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    let kinds: Vec<_> = (0..40)
        .map(|n| labelled(&n.to_string(), if n < 30 { 0 } else { 3_000 * (n - 29) }))
        .collect();
    let mut slices = Slices::default();
    let mut current: BTreeMap<u32, Arc<PodAttributes>> = BTreeMap::new();
    let mut moved = 0;
    for _ in 0..80 {
        let before = slices.resolve();
        for _ in 0..random(30) {
            let number = u32::try_from(random(500)).unwrap();
            let kind = &kinds[usize::try_from(random(40)).unwrap()];
            if random(4) == 0 {
                current.remove(&number);
            } else {
                current.insert(number, kind.clone());
            }
        }
        let all = pods(current.clone());
        let mut stop = random(12);
        loop {
            let changes = slices.changes(&all);
            if changes.is_empty() {
                break;
            }
            for change in changes {
                slices.apply(&change);
                let found = slices.resolve();
                for (addr, wanted) in all.iter() {
                    let (now, past) = (found.get(addr), before.get(addr));
                    assert!(
                        now == Some(wanted) || now == past,
                        "{addr}: {now:?}, {past:?}, {wanted:?}"
                    );
                }
                let holders = slices.0.values().map(|spec| Content::parse(spec).addresses.len());
                moved += usize::from(holders.sum::<usize>() > found.len());
                if stop == 0 {
                    stop = random(12);
                    break;
                }
                stop -= 1;
            }
        }
        assert_eq!(slices.resolve(), *all);
    }
    assert!(moved > 10, "addresses moved: {moved}");
}

/// The events of a rollout, as bytes that one Node receives.
#[test]
fn a_rollout_of_100_pods_is_a_few_kilobytes_for_each_node() {
    let app = |number: u32| labelled(&format!("app-{}", number / 50), 200);
    let mut current: BTreeMap<u32, Arc<PodAttributes>> = (0..10_000).map(|n| (n, app(n))).collect();
    let mut slices = Slices::default();
    slices.settle(&pods(current.clone()));
    // Two workloads start anew, a quarter of their Pods at once, with other addresses.
    let mut bytes = 0;
    for step in 0..4_u32 {
        for number in (0..100).filter(|number| number % 4 == step) {
            current.remove(&number);
            current.insert(20_000 + number, labelled(&format!("new-{}", number / 50), 200));
        }
        let all = pods(current.clone());
        for change in slices.changes(&all) {
            if let SliceChange::Write(_, spec) = &change {
                bytes += serde_json::to_vec(spec).unwrap().len();
            }
            slices.apply(&change);
        }
        slices.settle(&all);
    }
    println!("bytes of the slices: {bytes}");
    // Each Pod is at least 3 KB in each of four events while it starts, and one while it ends.
    assert!(bytes < 100 * 5 * 3_000 / 20, "{bytes}");
}

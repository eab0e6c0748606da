//! The connection of a member to its leader: one for each [`LinkSpec`].

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::ByteString;
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
    runtime::watcher,
};
use serde_json::json;
use tokio::{sync::Notify, task::JoinHandle, time::Instant};

use super::{
    apply::Applier,
    election::Fence,
    remarks::Remarks,
    watch::{self, Health, Store, Task, Watched, chain},
};
use crate::{
    api::{
        member_cluster_announce::MemberClusterAnnounce, names, resource_export::ResourceExport,
        resource_import::ResourceImport,
    },
    member::{
        doubt::{Doubt, Renewals},
        membership::LinkSpec,
    },
    metrics::tally::Tally,
    plan::{Action, Remark, Target},
    world::{self, LeaderView},
};

/// A watch of the leader is renewed that often, so that a dead connection is noticed.
const WATCH_SECONDS: u32 = 60;

/// Everything between this member and its leader.
pub struct Link {
    spec: LinkSpec,
    client: Client,
    fence: Fence,
    health: Arc<Health>,
    announces: Store<MemberClusterAnnounce>,
    exports: Store<ResourceExport>,
    imports: Store<ResourceImport>,
    /// At most one batch of requests is under way, beside the loop: a slow leader must not hold up the
    /// local cluster.
    lane: Lane,
    remarks: Remarks,
    doubt: Doubt,
    _tasks: [Task; 3],
}

enum Lane {
    Idle(Box<Applier>),
    Busy(LastWrites),
    Empty,
}

/// A batch of requests that is under way.
pub type LastWrites = JoinHandle<Box<Applier>>;

/// What is left of a connection that was closed.
pub struct Closed {
    /// What it was opened with.
    pub spec: LinkSpec,
    /// Its client.
    pub client: Client,
    /// What was being written.
    pub last: Option<LastWrites>,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The parts do not make a client.
    #[error("{cause}")]
    Client {
        /// What does not fit.
        cause: String,
    },
}

// === impl Link ===

impl Link {
    /// Begins to watch with a client made of `spec`, and writes while `fence` is open; that nobody answers shows
    /// later, in [`Link::state`].
    #[must_use]
    pub fn open(
        spec: LinkSpec,
        client: Client,
        fence: &Fence,
        changed: &Arc<Notify>,
        tally: &Arc<Tally>,
    ) -> Self {
        let health = Health::of(tally);
        let config = watcher::Config::default().timeout(WATCH_SECONDS);
        let announces = Store::watch(
            &client,
            Some(&spec.namespace),
            config.clone().fields(&format!(
                "metadata.name={}",
                names::member_announce(&spec.cluster_id)
            )),
            changed,
            &health,
        );
        let exports = Store::watch(
            &client,
            Some(&spec.namespace),
            config
                .clone()
                .labels(&format!("{}={}", names::LABEL_SOURCE_CLUSTER_ID, spec.cluster_id)),
            changed,
            &health,
        );
        let imports = Store::watch(&client, Some(&spec.namespace), config, changed, &health);
        Self {
            lane: Lane::Idle(Box::new(Applier::new(
                client.clone(),
                fence.clone(),
                health.clone(),
            ))),
            remarks: Remarks::new(client.clone(), tally.clone()),
            spec,
            client,
            fence: fence.clone(),
            health,
            doubt: Doubt::default(),
            announces: announces.0,
            exports: exports.0,
            imports: imports.0,
            _tasks: [announces.1, exports.1, imports.1],
        }
    }

    /// What it was opened with.
    #[must_use]
    pub fn spec(&self) -> &LinkSpec {
        &self.spec
    }

    /// How it goes.
    #[must_use]
    pub fn state(&self) -> world::Link {
        match self.health.state() {
            (Some(error), _) => world::Link::Down { error },
            (None, true) => world::Link::Up,
            (None, false) => world::Link::Connecting,
        }
    }

    /// The leader's objects.
    #[must_use]
    pub fn view(&mut self, now: Timestamp) -> LeaderView {
        let mut view = LeaderView {
            synced: self.announces.synced() && self.exports.synced() && self.imports.synced(),
            announces: self.announces.snapshot(),
            exports: self.exports.snapshot(),
            imports: self.imports.snapshot(),
            doubt: None,
        };
        // Asked last: a list that is in the view must be counted.
        let (announces, exports, imports) = (
            self.announces.renewals(),
            self.exports.renewals(),
            self.imports.renewals(),
        );
        let rewound = announces.rewound.saturating_add(exports.rewound);
        let renewals = Renewals {
            lists: imports.lists,
            rewound: rewound.saturating_add(imports.rewound),
        };
        view.doubt = self.doubt.look(renewals, now);
        view
    }

    /// Whether the last batch is done and the watches show it.
    pub async fn settled(&mut self) -> bool {
        if let Lane::Busy(task) = &mut self.lane {
            if !task.is_finished() {
                return false;
            }
            self.lane = match task.await {
                Ok(applier) => Lane::Idle(applier),
                Err(_) => Lane::Idle(Box::new(Applier::new(
                    self.client.clone(),
                    self.fence.clone(),
                    self.health.clone(),
                ))),
            };
        }
        let stores: [&dyn Watched; 3] = [&self.announces, &self.exports, &self.imports];
        let seen = |target: &Target| watch::sight(&stores, target);
        match &mut self.lane {
            Lane::Idle(applier) => applier.settled(seen),
            Lane::Busy(_) | Lane::Empty => false,
        }
    }

    /// Starts a batch; only after [`Link::settled`]. `changed` is told when it is done.
    pub fn start(&mut self, actions: Vec<Action>, changed: &Arc<Notify>) {
        // A batch that does nothing would tell `changed`, which plans the same batch again, and so on without a pause for as
        // long as the leader does not answer.
        let due = matches!(&self.lane, Lane::Idle(applier) if applier.is_due(&actions));
        if !due {
            self.health.tally().ask(&actions);
            return;
        }
        if let Lane::Idle(mut applier) = std::mem::replace(&mut self.lane, Lane::Empty) {
            let changed = changed.clone();
            self.lane = Lane::Busy(tokio::spawn(async move {
                applier.run(actions).await;
                changed.notify_one();
                applier
            }));
        }
    }

    /// What the leader's API server refuses, more than once; nothing while a batch is under way.
    #[must_use]
    pub fn refused(&self) -> BTreeMap<Target, String> {
        match &self.lane {
            Lane::Idle(applier) => applier.refused(),
            Lane::Busy(_) | Lane::Empty => BTreeMap::new(),
        }
    }

    /// Tells the leader cluster's people what holds now.
    pub fn tell(&self, remarks: Vec<Remark>, now: Timestamp) {
        self.remarks.tell(remarks, now);
    }

    /// When there is something to do again that no event announces.
    #[must_use]
    pub fn wake_at(&self) -> Option<Instant> {
        match &self.lane {
            Lane::Idle(applier) => applier.wake_at(),
            Lane::Busy(_) | Lane::Empty => None,
        }
    }

    /// Ends it, but for what is being written.
    #[must_use]
    pub fn close(self) -> Closed {
        Closed {
            spec: self.spec,
            client: self.client,
            last: match self.lane {
                Lane::Busy(task) => Some(task),
                Lane::Idle(_) | Lane::Empty => None,
            },
        }
    }
}

pub(super) async fn client(spec: &LinkSpec) -> Result<Client, LinkError> {
    let refuse = |cause: String| LinkError::Client { cause };
    let file: Kubeconfig = serde_json::from_value(json!({
        "clusters": [{ "name": "leader", "cluster": {
            "server": spec.server,
            "certificate-authority-data": ByteString(spec.ca.clone()),
        }}],
        "users": [{ "name": "member", "user": { "token": spec.token } }],
        "contexts": [{ "name": "leader", "context": { "cluster": "leader", "user": "member" } }],
        "current-context": "leader",
    }))
    .map_err(|e| refuse(chain(&e)))?;
    let mut config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
        .await
        .map_err(|e| refuse(chain(&e)))?;
    config.connect_timeout = Some(Duration::from_secs(3));
    Client::try_from(config).map_err(|e| refuse(chain(&e)))
}

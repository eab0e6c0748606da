//! Goodbyes: leaders are told that this cluster is no longer a member, beside everything else and for as long as that
//! takes.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Preconditions},
    core::{ApiResource, DynamicObject},
};
use serde::de::DeserializeOwned;
use tokio::{
    sync::Notify,
    time::{Instant, timeout},
};
use tracing::info;

use super::{
    election::Fence,
    link::{Closed, LastWrites},
    outside::Outside,
    watch::{Task, chain},
};
use crate::{
    api::{member_cluster_announce::MemberClusterAnnounce, names, resource_export::ResourceExport},
    member::{
        membership::{self, LinkSpec},
        parting::{Goodbye, Membership, Way},
    },
};

/// How long one try may take.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The pause after the first try that failed; it doubles.
const PAUSE: Duration = Duration::from_millis(100);
/// How long a request that was sent before may still be carried out: the announce has to be gone after that, too.
const LINGER: Duration = Duration::from_secs(15);
/// Exports read at a time.
const PAGE: u32 = 100;
/// The longest pause.
const MAX_PAUSE: Duration = Duration::from_secs(30);

/// What a try found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// Something, which is being deleted now.
    Something,
    /// Nothing of this membership.
    Nothing,
}

/// All goodbyes that were begun.
pub struct Goodbyes {
    fence: Fence,
    changed: Arc<Notify>,
    begun: BTreeMap<Membership, Saying>,
}

struct Saying {
    state: Arc<Mutex<Goodbye>>,
    way: Arc<Mutex<Option<Way>>>,
    _task: Task,
}

// === impl Goodbyes ===

impl Goodbyes {
    /// None yet; they are said while `fence` is open, and `changed` hears how they go.
    #[must_use]
    pub fn new(fence: Fence, changed: Arc<Notify>) -> Self {
        Self {
            fence,
            changed,
            begun: BTreeMap::new(),
        }
    }

    /// Says it, or goes on saying it: as the Secret of `way` says by then, or else over a connection that stood until now and
    /// whose token may have been replaced. The Secret is one of `secrets`.
    pub fn say(
        &mut self,
        membership: &Membership,
        way: Option<&Way>,
        closed: Option<Closed>,
        secrets: Api<Secret>,
        outside: &Arc<dyn Outside>,
    ) {
        if let Some(saying) = self.begun.get(membership) {
            // The record may have been on its way when it began.
            if let Some(way) = way {
                *lock(&saying.way) = Some(way.clone());
            }
            return;
        }
        let way = Arc::new(Mutex::new(way.cloned()));
        let (tell, on_record, outside) = (membership.clone(), way.clone(), outside.clone());
        let (client, last) = closed.map_or((None, None), |closed| (Some(closed.client), closed.last));
        self.begin(membership.clone(), way, last, move || {
            let (membership, way, client) = (tell.clone(), lock(&on_record).clone(), client.clone());
            let (secrets, outside) = (secrets.clone(), outside.clone());
            async move {
                let found = match way {
                    Some(way) => connect(&secrets, &membership, way, outside.as_ref()).await,
                    None => Err("it is not on record how".to_owned()),
                };
                let client = match (found, client) {
                    (Ok(client), _) | (Err(_), Some(client)) => client,
                    (Err(why), None) => return Err(why),
                };
                depart(&client, &membership).await
            }
        });
    }

    fn begin<F>(
        &mut self,
        membership: Membership,
        way: Arc<Mutex<Option<Way>>>,
        last: Option<LastWrites>,
        attempt: impl Fn() -> F + Send + 'static,
    ) where
        F: Future<Output = Result<Found, String>> + Send,
    {
        let state = Arc::new(Mutex::new(Goodbye::Begun));
        let (fence, changed, told) = (self.fence.clone(), self.changed.clone(), state.clone());
        let set = membership.cluster_set.clone();
        let task = Task::spawn(async move {
            // What is written after the leader has cleaned up stays there.
            if let Some(last) = last {
                let _applier = last.await;
            }
            let (begun, mut pause) = (Instant::now(), PAUSE);
            loop {
                let result = if fence.is_open() {
                    let late = |_| Err(format!("no answer within {} s", TIMEOUT.as_secs()));
                    timeout(TIMEOUT, attempt()).await.unwrap_or_else(late)
                } else {
                    Err("another replica may be working".to_owned())
                };
                let (news, wait) = match result {
                    Ok(Found::Nothing) if begun.elapsed() >= LINGER => (Goodbye::Said, Duration::ZERO),
                    Ok(_) => (Goodbye::Begun, LINGER),
                    Err(why) => {
                        let wait = pause;
                        pause = (pause * 2).min(MAX_PAUSE);
                        (Goodbye::Outstanding(why), wait)
                    }
                };
                let said = news == Goodbye::Said;
                {
                    let mut state = lock(&told);
                    if *state != news {
                        *state = news;
                        changed.notify_one();
                    }
                }
                if said {
                    return info!(set, "the leader knows that this cluster left");
                }
                tokio::time::sleep(wait).await;
            }
        });
        let saying = Saying {
            state,
            way,
            _task: task,
        };
        self.begun.insert(membership, saying);
    }

    /// How they go.
    #[must_use]
    pub fn states(&self) -> BTreeMap<Membership, Goodbye> {
        self.begun
            .iter()
            .map(|(membership, saying)| (membership.clone(), lock(&saying.state).clone()))
            .collect()
    }

    /// Says no more about memberships of which `keep` is not true.
    pub fn retain(&mut self, keep: impl Fn(&Membership) -> bool) {
        self.begun.retain(|membership, _| keep(membership));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A connection to a leader of which the record tells.
async fn connect(
    secrets: &Api<Secret>,
    membership: &Membership,
    way: Way,
    outside: &dyn Outside,
) -> Result<Client, String> {
    let named = ListParams::default().fields(&format!("metadata.name={}", way.secret));
    let found = secrets.list(&named).await.map_err(|e| chain(&e))?;
    let secret = found.items.into_iter().next();
    let secret = secret.ok_or_else(|| format!("Secret {:?} does not exist", way.secret))?;
    let (ca, token) = membership::credentials(&secret).map_err(|e| e.to_string())?;
    let spec = LinkSpec {
        cluster_set: membership.cluster_set.clone(),
        cluster_id: membership.cluster_id.clone(),
        namespace: membership.namespace.clone(),
        server: way.server,
        ca,
        token,
    };
    outside.connect(&spec).await.map_err(|e| e.to_string())
}

/// Takes back the announce of this membership; one of another set is another membership's. Once it is gone, so are the
/// exports the leader did not know yet when it let the announce go.
async fn depart(client: &Client, membership: &Membership) -> Result<Found, String> {
    let api: Api<MemberClusterAnnounce> = Api::namespaced(client.clone(), &membership.namespace);
    let name = names::member_announce(&membership.cluster_id);
    let found = api.get_opt(&name).await.map_err(|e| chain(&e))?;
    let Some(announce) = found else {
        return withdraw(client, membership).await;
    };
    let (ours, going) = (
        announce.cluster_set_id == membership.cluster_set,
        announce.metadata.deletion_timestamp.is_some(),
    );
    if ours && !going && delete(&api, &announce).await? {
        return Ok(Found::Something);
    }
    Ok(Found::Nothing)
}

/// Deletes every export of this cluster that is still there. They are read one by one: others may have
/// written what is no export at all.
async fn withdraw(client: &Client, membership: &Membership) -> Result<Found, String> {
    let resource = ApiResource::erase::<ResourceExport>(&());
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &membership.namespace, &resource);
    let mut found = Found::Nothing;
    let mut page = ListParams::default().limit(PAGE);
    loop {
        let exports = api.list(&page).await.map_err(|e| chain(&e))?;
        let next = exports.metadata.continue_.filter(|next| !next.is_empty());
        for export in &exports.items {
            // What cannot be read was not made by this cluster.
            let read = export.clone().try_parse::<ResourceExport>();
            let ours = read.is_ok_and(|e| e.spec.cluster_id == membership.cluster_id);
            if ours && export.metadata.deletion_timestamp.is_none() && delete(&api, export).await? {
                found = Found::Something;
            }
        }
        let Some(next) = next else {
            return Ok(found);
        };
        page = page.continue_token(&next);
    }
}

/// Deletes this very object; false if it is gone already.
async fn delete<K>(api: &Api<K>, object: &K) -> Result<bool, String>
where
    K: ResourceExt + Clone + Debug + DeserializeOwned,
{
    let preconditions = Preconditions {
        uid: object.uid(),
        resource_version: None,
    };
    let params = DeleteParams {
        preconditions: Some(preconditions),
        ..DeleteParams::default()
    };
    match api.delete(&object.name_any(), &params).await {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
        Err(error) => Err(chain(&error)),
    }
}

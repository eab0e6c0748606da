//! Stand-alone mode: objects from the YAML and JSON files of a directory, watched with inotify.

mod parse;
mod store;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use inotify::{Inotify, WatchMask};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, error, info, warn};

use super::{Receiver, SourceError};
use crate::changed_state::send_changed;
use crate::objects::Objects;
use crate::policy::Mode;
pub use parse::{ManifestError, Object};
use store::ManifestStore;
pub use store::parse_objects;

/// Quiet time after a burst of events …
const QUIET: Duration = Duration::from_millis(50);
/// … and the longest delay by a burst.
const MAX_DELAY: Duration = Duration::from_millis(500);
/// Interval of attempts to open a missing directory.
const REOPEN_INTERVAL: Duration = Duration::from_secs(1);

/// Reads `dir` and keeps watching it. The objects have `policy_mode`.
pub(super) fn start(dir: &Path, policy_mode: Option<Mode>) -> Result<Receiver, SourceError> {
    let failed = |operation| {
        let dir = dir.to_owned();
        move |source| SourceError::Directory {
            dir,
            operation,
            source,
        }
    };
    let mut reader = ManifestReader::new(dir, policy_mode);
    // Watched before it is read, so that no change is missed.
    let events = watch_directory(dir).map_err(failed("cannot be watched"))?;
    reader.read().map_err(failed("cannot be read"))?;
    let (sender, receiver) = watch::channel(Some(Arc::new(reader.objects())));
    tokio::spawn(run(reader, events, sender));
    Ok(receiver)
}

type Events = inotify::EventStream<[u8; 4096]>;

fn watch_directory(dir: &Path) -> io::Result<Events> {
    let inotify = Inotify::init()?;
    let mask = WatchMask::CREATE
        | WatchMask::CLOSE_WRITE
        | WatchMask::MOVE
        | WatchMask::DELETE
        | WatchMask::DELETE_SELF
        | WatchMask::MOVE_SELF
        | WatchMask::ONLYDIR;
    inotify.watches().add(dir, mask)?;
    inotify.into_event_stream([0; 4096])
}

/// Reads the directory after every change, and publishes changed objects.
async fn run(mut reader: ManifestReader, mut events: Events, sender: watch::Sender<Option<Arc<Objects>>>) {
    while !sender.is_closed() {
        match events.next().await {
            Some(Ok(_)) => debounce(&mut events).await,
            other => debug!(?other, "inotify"),
        }
        // The watch is opened again: the path may refer to another directory now.
        events = loop {
            match watch_directory(&reader.dir) {
                Ok(events) => break events,
                Err(error) => {
                    reader.report(vec![ManifestError {
                        file: reader.dir.clone(),
                        document: None,
                        reason: format!("cannot be watched ({error}); keeping the last state"),
                    }]);
                    sleep(REOPEN_INTERVAL).await;
                }
            }
        };
        if let Err(error) = reader.read() {
            reader.report(vec![ManifestError {
                file: reader.dir.clone(),
                document: None,
                reason: format!("cannot be read ({error}); keeping the last state"),
            }]);
            continue;
        }
        send_changed(&sender, Some(Arc::new(reader.objects())));
    }
}

/// Waits for the end of a burst of events.
async fn debounce(events: &mut Events) {
    let end = Instant::now() + MAX_DELAY;
    while Instant::now() < end {
        if timeout(QUIET, events.next()).await.is_err() {
            return;
        }
    }
}

/// The directory, its objects and the errors logged.
#[derive(Debug)]
struct ManifestReader {
    dir: PathBuf,
    policy_mode: Option<Mode>,
    directory: ManifestStore,
    reported: BTreeSet<ManifestError>,
    ignored: BTreeSet<String>,
}

impl ManifestReader {
    fn new(dir: &Path, policy_mode: Option<Mode>) -> Self {
        Self {
            dir: dir.to_owned(),
            policy_mode,
            directory: ManifestStore::default(),
            reported: BTreeSet::new(),
            ignored: BTreeSet::new(),
        }
    }

    fn read(&mut self) -> io::Result<()> {
        let mut files = BTreeSet::new();
        for entry in fs::read_dir(&self.dir)? {
            let path = entry?.path();
            if is_manifest(&path) && path.is_file() {
                files.insert(path);
            }
        }
        // Read one by one: of a large directory, one text is in memory.
        let texts = files.into_iter().map(|path| {
            let text = fs::read_to_string(&path).map_err(|error| format!("cannot be read: {error}"));
            (path, text)
        });
        let (mut errors, ignored) = self.directory.update(texts);
        errors.extend(self.directory.objects().1);
        for kind in ignored.difference(&self.ignored) {
            info!(%kind, "unsupported kind ignored");
        }
        self.ignored = ignored;
        self.report(errors);
        Ok(())
    }

    fn objects(&self) -> Objects {
        let (mut objects, _) = self.directory.objects();
        objects.policy_mode = self.policy_mode;
        objects
    }

    /// Logs each error once until it is resolved.
    fn report(&mut self, errors: Vec<ManifestError>) {
        let errors: BTreeSet<ManifestError> = errors.into_iter().collect();
        for error in errors.difference(&self.reported) {
            error!(%error, "invalid manifest; keeping the previous objects");
        }
        for error in self.reported.difference(&errors) {
            warn!(file = %error.file.display(), document = error.document, "manifest valid again");
        }
        self.reported = errors;
    }
}

fn is_manifest(path: &Path) -> bool {
    let hidden = path
        .file_name()
        .is_none_or(|name| name.to_string_lossy().starts_with('.'));
    let extension = path
        .extension()
        .map(|extension| extension.to_string_lossy().to_ascii_lowercase());
    !hidden && matches!(extension.as_deref(), Some("yaml" | "yml" | "json"))
}

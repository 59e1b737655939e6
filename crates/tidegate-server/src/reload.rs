//! Keeping the configuration up to date while serving: the file is watched, and read again on SIGHUP. A right one is applied and
//! handed out, a wrong one changes nothing. What to do with it is told by who starts this.
//!
//! What counts is what is in the file, not what is told about it: folders are watched and not files, so that it does not matter
//! whether an editor writes the file, puts another in its place, or a link is pointed elsewhere; and where nothing is told, it is
//! looked at now and then.

use std::{
    collections::BTreeSet,
    error::Error,
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc::{SyncSender, sync_channel},
    },
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use notify::{RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::{Notify, oneshot, watch},
    task::JoinHandle,
    time::{MissedTickBehavior, interval, sleep, timeout},
};
use tracing::{error, info, warn};

use crate::config::{Config, Problems, Sources};

/// A configuration that is kept up to date for as long as this lives.
pub struct Reload {
    config: watch::Receiver<Arc<Config>>,
    counts: Arc<Counts>,
    task: JoinHandle<()>,
}

/// How often the configuration was read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reloads {
    /// It was right, and is in force.
    pub ok: u64,
    /// It was wrong or could not be read; what was before is in force.
    pub failed: u64,
}

struct Counts {
    ok: AtomicU64,
    failed: AtomicU64,
    /// When the configuration in force was read, in milliseconds since 1970.
    since: AtomicU64,
}

impl Default for Counts {
    fn default() -> Self {
        let counts = Self { ok: AtomicU64::new(0), failed: AtomicU64::new(0), since: AtomicU64::new(0) };
        counts.begin();
        counts
    }
}

impl Counts {
    /// Takes note that another is in force.
    fn begin(&self) {
        let now = UNIX_EPOCH.elapsed().map_or(0, |since| since.as_millis());
        self.since.store(u64::try_from(now).unwrap_or(u64::MAX), Relaxed);
    }

    fn told(&self) -> Reloads {
        Reloads { ok: self.ok.load(Relaxed), failed: self.failed.load(Relaxed) }
    }
}

impl Reload {
    /// Begins with `config`, which came from `sources`. Each later one is given to `apply`, which refuses it or puts it into force as
    /// a whole, and is then handed out.
    ///
    /// ```no_run
    /// use tidegate::Limiter;
    /// use tidegate_server::{config::Sources, reload::Reload};
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let sources = Sources::file("tidegate.toml");
    /// let config = sources.load()?;
    /// let limiter = Limiter::builder().policies(config.policies()?).build()?;
    /// let reload = Reload::start(sources, config, move |config| Ok(limiter.configure(config.policies()?)?))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When the process cannot have signals.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn start<A>(sources: Sources, config: Config, apply: A) -> io::Result<Self>
    where
        A: FnMut(&Config) -> Result<(), Problems> + Send + 'static,
    {
        Self::start_at(Pace::default(), sources, config, apply)
    }

    fn start_at<A>(pace: Pace, sources: Sources, config: Config, apply: A) -> io::Result<Self>
    where
        A: FnMut(&Config) -> Result<(), Problems> + Send + 'static,
    {
        let counts = Arc::new(Counts::default());
        let (newest, receiver) = watch::channel(Arc::new(config.clone()));
        let told = Arc::new(Notify::new());
        let text = sources.text_again();
        text.iter().for_each(|text| tell_overridden(&sources, text));
        let seen = match text {
            Ok(text) if sources.load_text(&text).as_ref() == Ok(&config) => Ok(text),
            // What it was loaded from.
            Err(problems) if sources.is_read_once() => Err(problems.to_string()),
            // It has changed since: then it is as if it had not been seen.
            _ => Err(String::new()),
        };
        let mut reloader = Reloader {
            watch: Watch::start(&sources, &told),
            seen,
            sources,
            started: config,
            newest,
            counts: Arc::clone(&counts),
            apply,
        };
        let hangups = signal(SignalKind::hangup())?;
        let task = tokio::spawn(async move { reloader.run(&pace, &told, hangups).await });
        Ok(Self { config: receiver, counts, task })
    }

    /// The configuration in force, now and later.
    pub fn config(&self) -> watch::Receiver<Arc<Config>> {
        self.config.clone()
    }

    /// How often it was read again.
    pub fn counts(&self) -> Reloads {
        self.counts.told()
    }

    /// Tells that, and since when the one in force is, now and later.
    pub(crate) fn counter(&self) -> impl Fn() -> (Reloads, SystemTime) + Send + Sync + 'static {
        let counts = Arc::clone(&self.counts);
        move || (counts.told(), UNIX_EPOCH + Duration::from_millis(counts.since.load(Relaxed)))
    }
}

impl Drop for Reload {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Pace {
    /// How long a file must stay the same to be believed: who writes it may not be done.
    quiet: Duration,
    /// How often it is looked at without being told to: not every file system tells, nor of links further up.
    poll: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self { quiet: Duration::from_millis(100), poll: Duration::from_secs(5) }
    }
}

/// How often a file that keeps changing is waited for before it is taken as it is.
const MAX_WAITS: usize = 20;

struct Reloader<A> {
    sources: Sources,
    watch: Watch,
    /// What was in the file when it was last looked at, or why it could not be read.
    seen: Result<String, String>,
    /// What the process was started with, and still is where it takes a start to change that.
    started: Config,
    newest: watch::Sender<Arc<Config>>,
    counts: Arc<Counts>,
    apply: A,
}

enum Cause {
    /// Somebody has asked for it.
    Signal,
    /// Something may have changed.
    Watch,
}

impl<A: FnMut(&Config) -> Result<(), Problems>> Reloader<A> {
    async fn run(&mut self, pace: &Pace, told: &Notify, mut hangups: Signal) {
        let mut poll = interval(pace.poll);
        poll.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let cause = tokio::select! {
                _ = hangups.recv() => Cause::Signal,
                () = told.notified() => Cause::Watch,
                _ = poll.tick() => Cause::Watch,
            };
            self.watch.follow().await;
            let text = settled(&self.sources, pace).await;
            self.take(&cause, text);
        }
    }

    fn take(&mut self, cause: &Cause, text: Result<String, Problems>) {
        let seen = text.clone().map_err(|problems| problems.to_string());
        let is_new = seen != self.seen;
        if !is_new && matches!(cause, Cause::Watch) {
            return;
        }
        self.seen = seen;
        match text.and_then(|text| self.load(&text)) {
            Ok(config) => {
                self.counts.begin();
                self.counts.ok.fetch_add(1, Relaxed);
                info!(policies = config.policy.len(), "the configuration was read again and is in force");
                for key in needs_restart(&self.started, &config) {
                    warn!("{key} has changed; that comes into force at the next start");
                }
                self.newest.send_replace(Arc::new(config));
            }
            Err(problems) => {
                self.counts.failed.fetch_add(1, Relaxed);
                if is_new || matches!(cause, Cause::Signal) {
                    error!("the configuration is wrong and changes nothing:\n{problems}");
                }
            }
        }
    }

    fn load(&mut self, text: &str) -> Result<Config, Problems> {
        let config = self.sources.load_text_to_serve(text)?;
        (self.apply)(&config)?;
        tell_overridden(&self.sources, text);
        Ok(config)
    }
}

/// Who edits a key that a flag or a variable gives would else look long for why nothing happens.
fn tell_overridden(sources: &Sources, text: &str) {
    for (by, key) in sources.overridden(text) {
        info!("{key} is what {by} says, and not what the file does");
    }
}

/// What is in the file, once it stays the same. Told of changes in a row, this looks at it no more often than that either.
async fn settled(sources: &Sources, pace: &Pace) -> Result<String, Problems> {
    let mut text = sources.text_again();
    for _ in 0..MAX_WAITS {
        sleep(pace.quiet).await;
        let later = sources.text_again();
        if later == text {
            break;
        }
        text = later;
    }
    text
}

/// Keys that differ and of which a running process cannot take note.
fn needs_restart(old: &Config, new: &Config) -> Vec<String> {
    const TABLES: [&str; 5] = ["listen", "store", "limits", "admin", "telemetry"];
    // What policies inherit.
    const NOT: &str = "store.on_error";
    let json = |config| serde_json::to_value(config).unwrap_or_default();
    let (old_json, new_json) = (json(old), json(new));
    let mut keys = BTreeSet::new();
    for table in TABLES {
        let fields = new_json[table].as_object().into_iter().flatten();
        let changed = fields.filter(|(key, value)| old_json[table][key.as_str()] != **value);
        keys.extend(changed.map(|(key, _)| format!("{table}.{key}")));
    }
    // Its password is not in the JSON.
    if old.store.url != new.store.url {
        keys.insert("store.url".to_owned());
    }
    keys.remove(NOT);
    keys.into_iter().collect()
}

/// Watches the folders that the file is in, on a thread of its own: what tells of changes takes no orders while there are any to tell of.
struct Watch {
    orders: Option<SyncSender<oneshot::Sender<()>>>,
}

impl Watch {
    /// As long as it is waited for that all is watched.
    const PATIENCE: Duration = Duration::from_secs(1);

    fn start(sources: &Sources, told: &Arc<Notify>) -> Self {
        let Some(path) = sources.path().map(PathBuf::from) else { return Self { orders: None } };
        let (told, late) = (Arc::clone(told), Arc::clone(told));
        let tell = move |event: notify::Result<notify::Event>| {
            // That somebody reads is no news; it would be us.
            if !event.is_ok_and(|event| event.kind.is_access()) {
                told.notify_one();
            }
        };
        let (orders, ordered) = sync_channel::<oneshot::Sender<()>>(1);
        let start = || -> Result<(), Box<dyn Error>> {
            let mut folders = Folders { watcher: notify::recommended_watcher(tell)?, watched: BTreeSet::new() };
            let follow = move || {
                for done in ordered {
                    folders.follow(&path);
                    // What has changed since it was not waited for any longer has been missed.
                    if done.send(()).is_err() {
                        late.notify_one();
                    }
                }
            };
            thread::Builder::new().name("watch".to_owned()).spawn(follow)?;
            Ok(())
        };
        if let Err(error) = start() {
            warn!("changes of the configuration are seen late, they are not told here: {error}");
        }
        Self { orders: Some(orders) }
    }

    /// Watches what the file is in now.
    async fn follow(&self) {
        let (done, is_done) = oneshot::channel();
        if self.orders.as_ref().is_some_and(|orders| orders.try_send(done).is_ok()) {
            let _ = timeout(Self::PATIENCE, is_done).await;
        }
    }
}

/// The folders whose changes are told: the file's own, and that of the file which it is a link to.
struct Folders {
    watcher: RecommendedWatcher,
    watched: BTreeSet<PathBuf>,
}

impl Folders {
    /// One that was watched may have been replaced: it is watched again.
    fn follow(&mut self, path: &Path) {
        let paths = [std::path::absolute(path), path.canonicalize()];
        let folders = paths.into_iter().flatten().filter_map(|path| path.parent().map(PathBuf::from)).collect();
        for gone in self.watched.difference(&folders) {
            let _ = self.watcher.unwatch(gone);
        }
        for folder in &folders {
            // One that is not there is looked for again when the file is.
            let _ = self.watcher.watch(folder, RecursiveMode::NonRecursive);
        }
        self.watched = folders;
    }
}

#[cfg(test)]
mod tests;

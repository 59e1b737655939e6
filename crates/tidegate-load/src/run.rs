//! The generator: connections that ask, when each hit is due, and the end. It knows nothing of what is asked.

use std::{
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use tokio::{
    runtime::Handle,
    sync::Semaphore,
    task::JoinSet,
    time::{interval_at, sleep_until, timeout},
};

use crate::{Connection, Keys, Tally, Target, keys::Sequence};

/// How long what is under way at the end may still take.
const GRACE: Duration = Duration::from_secs(1);

/// What a hit that is sent by schedule may be late without that being told of.
const LATE: Duration = Duration::from_millis(1);

/// What is to be asked.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// How many connections ask, each one hit at a time.
    pub connections: usize,
    /// Hits per second, due at even distances whether or not earlier ones have been answered. Nothing: each connection asks again
    /// when it has been answered.
    pub rate: Option<f64>,
    /// How long to ask before anything is counted.
    pub warmup: Duration,
    /// How long to count.
    pub duration: Duration,
    /// Which keys.
    pub keys: Keys,
}

/// What became of it.
#[derive(Clone, Debug)]
pub struct Report {
    /// What was counted. By a schedule, latency is from the time when a hit was due.
    pub tally: Tally,
    /// How long it was counted.
    pub elapsed: Duration,
}

impl Load {
    /// Asks until the time is over or `stop` is there; what is under way then has a second to be answered. `watch` is shown what has
    /// been counted so far, once a second.
    ///
    /// # Errors
    /// When there is no connection to begin with.
    pub async fn run<T: Target>(
        &self,
        target: &T,
        stop: impl Future<Output = ()>,
        mut watch: impl FnMut(&Tally),
    ) -> Result<Report, String> {
        let mut connections = Vec::new();
        for _ in 0..self.connections {
            connections.push(target.connect().await?);
        }
        let start = Instant::now();
        let counted_from = start + self.warmup;
        let shared = Arc::new(Shared {
            schedule: self.rate.map(|rate| Schedule::new(start, rate, self.warmup + self.duration)),
            counted_from,
            is_over: AtomicBool::new(false),
            // One for each thread: the locks are hardly ever waited for.
            tallies: (0..Handle::current().metrics().num_workers()).map(|_| Mutex::default()).collect(),
        });
        let pacer = shared.schedule.is_some().then(|| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.schedule.iter().for_each(Schedule::pace))
        });
        let mut asking = JoinSet::new();
        for (index, connection) in connections.into_iter().enumerate() {
            let keys = self.keys.sequence(index as u64);
            asking.spawn(ask(Arc::clone(&shared), index, connection, keys));
        }

        let end = counted_from + self.duration;
        let mut stop = pin!(stop);
        let mut seconds = interval_at((start + Duration::from_secs(1)).into(), Duration::from_secs(1));
        loop {
            tokio::select! {
                biased;
                () = &mut stop => break,
                () = sleep_until(end.into()) => break,
                _ = seconds.tick() => watch(&shared.total()),
            }
        }
        let ended = Instant::now();
        if let Some(schedule) = &shared.schedule {
            schedule.due.close();
        }
        shared.is_over.store(true, Ordering::Relaxed);
        let answered = async {
            while let Some(ended) = asking.join_next().await {
                ended.map_err(|_| "a task that asks has panicked")?;
            }
            Ok::<_, &str>(())
        };
        match timeout(GRACE, answered).await {
            Ok(answered) => answered?,
            Err(_) => asking.shutdown().await,
        }

        let mut tally = shared.total();
        if let (Some(pacer), Some(schedule)) = (pacer, &shared.schedule) {
            pacer.join().map_err(|_| "the thread that keeps time has panicked")?;
            // What nobody was free to send has waited as well.
            let unsent = schedule.taken.load(Ordering::Relaxed)..schedule.due_by(ended);
            for since in unsent.map(|hit| schedule.time_of(hit)).filter(|since| *since >= counted_from) {
                tally.unanswered(ended - since);
            }
        }
        Ok(Report { tally, elapsed: ended - counted_from })
    }
}

/// What all connections have in common.
struct Shared {
    schedule: Option<Schedule>,
    counted_from: Instant,
    is_over: AtomicBool,
    tallies: Vec<Mutex<Tally>>,
}

impl Shared {
    fn tally(&self, connection: usize) -> MutexGuard<'_, Tally> {
        self.tallies[connection % self.tallies.len()].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn total(&self) -> Tally {
        let mut total = Tally::default();
        (0..self.tallies.len()).for_each(|index| total.add(&self.tally(index)));
        total
    }
}

/// Hits that are due at even distances. The free connection that has waited longest takes the next.
struct Schedule {
    start: Instant,
    rate: f64,
    total: u64,
    /// One for each hit that is due and not taken.
    due: Semaphore,
    taken: AtomicU64,
}

impl Schedule {
    fn new(start: Instant, rate: f64, duration: Duration) -> Self {
        let total = (duration.as_secs_f64() * rate).round() as u64;
        Self { start, rate, total, due: Semaphore::new(0), taken: AtomicU64::new(0) }
    }

    fn time_of(&self, hit: u64) -> Instant {
        self.start + Duration::from_secs_f64(hit as f64 / self.rate)
    }

    fn due_by(&self, time: Instant) -> u64 {
        (((time - self.start).as_secs_f64() * self.rate) as u64 + 1).min(self.total)
    }

    /// Hands out what is due until nobody takes it any more. On a thread of its own: timers of the runtime go by whole milliseconds.
    fn pace(&self) {
        let mut handed_out = 0;
        while !self.due.is_closed() {
            let now = Instant::now();
            let due = self.due_by(now);
            self.due.add_permits((due - handed_out) as usize);
            handed_out = due;
            // Not for long, to see the end.
            thread::sleep(self.time_of(due).saturating_duration_since(now).min(Duration::from_millis(20)));
        }
    }

    /// When the next hit was due, once it is; nothing at the end.
    async fn next(&self) -> Option<Instant> {
        self.due.acquire().await.ok()?.forget();
        Some(self.time_of(self.taken.fetch_add(1, Ordering::Relaxed)))
    }
}

/// One connection, until it is over and what it has asked is answered.
async fn ask(shared: Arc<Shared>, index: usize, mut connection: impl Connection, mut keys: Sequence) {
    let mut free = Instant::now();
    while !shared.is_over.load(Ordering::Relaxed) {
        let mut since = free;
        if let Some(schedule) = &shared.schedule {
            let Some(due) = schedule.next().await else { break };
            since = due;
        }
        let mut waiting = Waiting { shared: &shared, index, since: (since >= shared.counted_from).then_some(since) };
        if waiting.since.is_some() && shared.schedule.is_some() && since.max(free).elapsed() > LATE {
            shared.tally(index).late += 1;
        }
        let told = connection.ask(keys.next()).await;
        free = Instant::now();
        if waiting.since.take().is_some() {
            shared.tally(index).answered(told, free - since);
        }
    }
}

/// A hit under way. Dropped while it is, as the task is when patience ends, it has not been answered.
struct Waiting<'a> {
    shared: &'a Shared,
    index: usize,
    /// If it counts.
    since: Option<Instant>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(since) = self.since {
            self.shared.tally(self.index).unanswered(since.elapsed());
        }
    }
}

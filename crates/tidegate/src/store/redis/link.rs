//! The link to the server: one task that owns the connection, sends what has gathered while the last call was under way, and
//! replaces the connection when it is no good. It never sends a hit twice unless the server has said that it did not run.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use parking_lot::Mutex;
use redis::{RedisError, aio::MultiplexedConnection};
use tokio::{
    sync::{mpsc, oneshot},
    task::yield_now,
    time::{sleep, timeout},
};

use super::{
    call::{Caller, Job},
    door::{CONNECT, Door, code, ping},
    wire::Answers,
};
use crate::error::StoreError;

/// Hits that go together in one call: enough to share its cost, few enough that nobody else waits long for Redis.
const MAX_BATCH: usize = 128;
/// Work that can wait. More is refused: it would not be done in time.
const QUEUE: usize = 65_536;
/// Calls in a row without an answer after which the connection is given up, and how long it may be silent.
const MAX_TIMEOUTS: u32 = 3;
const MAX_SILENCE: Duration = Duration::from_millis(250);
/// Between two tries to connect.
const RETRY: Duration = Duration::from_millis(100);
/// An idle connection is tried this often, so that a dead one is replaced before somebody needs it.
const IDLE: Duration = Duration::from_secs(1);

type Reply<T> = oneshot::Sender<Result<T, StoreError>>;

enum Work {
    Hit(Job, Reply<Answers>),
    /// Commands that are not a decision: for the ranking.
    Commands(redis::Pipeline, Reply<Vec<redis::Value>>),
}

/// Who has work for the server.
pub(super) struct Link {
    work: mpsc::Sender<Work>,
    up: Arc<AtomicBool>,
}

/// What is known of the server, by all links to it.
#[derive(Default)]
pub(super) struct Health {
    /// The server's clock less this machine's, in microseconds.
    ahead: AtomicI64,
    pub(super) calls: AtomicU64,
    pub(super) hits: AtomicU64,
    pub(super) connects: AtomicU64,
    /// The server's `maxmemory-policy`, where it could evict keys of ours.
    pub(super) evicts: Mutex<Option<String>>,
    /// Why the last try to connect failed, if it did.
    pub(super) trouble: Mutex<Option<String>>,
}

impl Link {
    /// Starts the task. It ends when the link is dropped.
    pub(super) fn start(door: Door, patience: Duration, runtime: &tokio::runtime::Handle) -> Self {
        let (work, queue) = mpsc::channel(QUEUE);
        let up = Arc::new(AtomicBool::new(false));
        let task =
            Task { patience, up: Arc::clone(&up), health: Arc::clone(&door.health), caller: Caller::new(&door.health), door };
        runtime.spawn(task.run(queue));
        Self { work, up }
    }

    /// Whether there is a connection that answers; there is none when the runtime has gone.
    pub(super) fn is_up(&self) -> bool {
        self.up.load(Relaxed) && !self.has_ended()
    }

    /// Whether the task has gone, with its runtime.
    pub(super) fn has_ended(&self) -> bool {
        self.work.is_closed()
    }

    /// What the script answers to a hit. It is handed in at once: no future has to hold it.
    pub(super) fn ask(&self, job: Job) -> impl Future<Output = Result<Answers, StoreError>> + use<> {
        self.hand_in(|reply| Work::Hit(job, reply))
    }

    /// What the server answers to commands, which are handed in at once.
    pub(super) fn send(&self, commands: redis::Pipeline) -> impl Future<Output = Result<Vec<redis::Value>, StoreError>> + use<> {
        self.hand_in(|reply| Work::Commands(commands, reply))
    }

    fn hand_in<T, W: FnOnce(Reply<T>) -> Work>(&self, work: W) -> impl Future<Output = Result<T, StoreError>> + use<T, W> {
        let (reply, answer) = oneshot::channel();
        let handed_in = if self.is_up() {
            self.work.try_send(work(reply)).map_err(|error| match error {
                mpsc::error::TrySendError::Full(_) => StoreError::Full,
                mpsc::error::TrySendError::Closed(_) => StoreError::Down,
            })
        } else {
            Err(StoreError::Down)
        };
        async move {
            handed_in?;
            answer.await.unwrap_or(Err(StoreError::Down))
        }
    }
}

impl Health {
    pub(super) fn ahead(&self) -> i64 {
        self.ahead.load(Relaxed)
    }

    /// Notes what time it is there.
    pub(super) fn set_clock(&self, server: i64) {
        let here = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as i64);
        self.ahead.store(server - here, Relaxed);
    }
}

/// Why a connection is given up.
enum Lost {
    /// Nobody is left to serve.
    Done,
    To(String),
    /// It is silent, and this one, which was made meanwhile, is not.
    Replaced(MultiplexedConnection),
}

/// How long the server has not answered.
#[derive(Default)]
struct Silence {
    timeouts: u32,
    since: Option<Instant>,
}

impl Silence {
    /// Notes that what was sent at `sent` had no answer; whether to give the connection up.
    fn goes_on(&mut self, sent: Instant) -> bool {
        self.timeouts += 1;
        let since = *self.since.get_or_insert(sent);
        self.timeouts >= MAX_TIMEOUTS || since.elapsed() >= MAX_SILENCE
    }
}

struct Task {
    door: Door,
    /// How long a call may take.
    patience: Duration,
    /// Whether there is a connection that answers.
    up: Arc<AtomicBool>,
    health: Arc<Health>,
    caller: Caller,
}

impl Task {
    async fn run(mut self, mut queue: mpsc::Receiver<Work>) {
        let mut told = false;
        let mut replacement = None;
        loop {
            let connect = async {
                match replacement.take() {
                    Some(connection) => Ok(connection),
                    None => self.door.connect().await,
                }
            };
            let Some(connected) = meanwhile(&mut queue, connect).await else { return };
            match connected {
                Ok(mut connection) => {
                    tracing::info!("connected to the store");
                    told = false;
                    *self.health.trouble.lock() = None;
                    self.health.connects.fetch_add(1, Relaxed);
                    self.up.store(true, Relaxed);
                    self.caller = Caller::new(&self.health);
                    let began = Instant::now();
                    let lost = self.serve(&mut connection, &mut queue).await;
                    if let Lost::To(reason) = &lost {
                        *self.health.trouble.lock() = Some(reason.clone());
                    }
                    self.up.store(false, Relaxed);
                    match lost {
                        Lost::Done => return,
                        Lost::To(reason) => tracing::warn!(reason, "lost the store"),
                        Lost::Replaced(connection) => {
                            tracing::warn!(reason = "no answer", "replaced the connection to the store");
                            replacement = Some(connection);
                        }
                    }
                    // The first try is at once, unless the connection was no good from the start.
                    if replacement.is_some() || began.elapsed() >= IDLE {
                        continue;
                    }
                }
                Err(reason) => {
                    if !std::mem::replace(&mut told, true) {
                        tracing::warn!(reason, "the store cannot be reached");
                    }
                    *self.health.trouble.lock() = Some(reason);
                }
            }
            if meanwhile(&mut queue, sleep(RETRY)).await.is_none() {
                return;
            }
        }
    }

    /// Sends what comes until the connection is no good.
    async fn serve(&mut self, connection: &mut MultiplexedConnection, queue: &mut mpsc::Receiver<Work>) -> Lost {
        let mut gathered = Vec::with_capacity(MAX_BATCH);
        let mut silence = Silence::default();
        loop {
            // After silence it is soon asked whether anybody is there.
            let idle = if silence.timeouts == 0 { IDLE } else { RETRY };
            match timeout(idle, queue.recv_many(&mut gathered, MAX_BATCH)).await {
                Ok(0) => return Lost::Done,
                Ok(_) => {}
                Err(_) => match timeout(CONNECT, ping(connection)).await {
                    Ok(Ok(())) => {
                        silence = Silence::default();
                        continue;
                    }
                    Ok(Err(error)) => return Lost::To(code(&error).to_owned()),
                    Err(_) => return Lost::To("no answer".to_owned()),
                },
            }
            // Those who were answered ask again one after the other: for as long as more of them do it is gathered. Until nobody has twice,
            // because another worker may have taken some of them over.
            let mut quiet = 0;
            while quiet < 2 && gathered.len() < MAX_BATCH {
                yield_now().await;
                quiet += 1;
                if !queue.is_empty() {
                    quiet = 0;
                    let room = MAX_BATCH - gathered.len();
                    queue.recv_many(&mut gathered, room).await;
                }
            }
            let mut hits = Vec::with_capacity(gathered.len());
            // A hit that nobody waits for any more is not sent, and so not charged.
            let wanted = gathered.drain(..).filter(|work| !work.is_abandoned());
            let mut commands = Vec::new();
            for work in wanted {
                match work {
                    Work::Hit(job, reply) => hits.push((job, reply)),
                    Work::Commands(pipeline, reply) => commands.push((pipeline, reply)),
                }
            }
            for (pipeline, reply) in commands {
                let sent = Instant::now();
                let answer = timeout(self.patience.min(CONNECT), pipeline.query_async::<Vec<redis::Value>>(connection)).await;
                if answer.is_err() && silence.goes_on(sent) {
                    refuse(hits, &StoreError::Down);
                    return Lost::To("no answer".to_owned());
                }
                let answer = answer.map_or(Err(StoreError::Timeout), |answer| answer.map_err(|error| refusal(&error)));
                let _ = reply.send(answer);
            }
            while !hits.is_empty() {
                // Clocks of tests move between two hits: those of one time go together.
                let same = hits.iter().take_while(|(job, _)| job.time == hits[0].0.time).count();
                let rest = hits.split_off(same);
                let batch = std::mem::replace(&mut hits, rest);
                let sent = Instant::now();
                let lost = match self.patient_call(connection, &batch).await {
                    Ok(Ok(answers)) => {
                        silence = Silence::default();
                        let lost = answers.iter().find_map(fatal);
                        hand_out(batch, answers);
                        lost
                    }
                    Ok(Err(error)) => {
                        let failed = if error.is_io_error() { StoreError::Down } else { refusal(&error) };
                        refuse(batch, &failed);
                        is_fatal(code(&error)).then(|| code(&error).to_owned())
                    }
                    Err(fresh) => {
                        refuse(batch, &StoreError::Timeout);
                        if let Some(fresh) = fresh {
                            refuse(hits, &StoreError::Down);
                            return Lost::Replaced(fresh);
                        }
                        silence.goes_on(sent).then(|| "no answer".to_owned())
                    }
                };
                if let Some(reason) = lost {
                    refuse(hits, &StoreError::Down);
                    return Lost::To(reason);
                }
            }
        }
    }

    /// A call, and how long to wait for it. When it has been silent for a while, another connection is tried: where that answers,
    /// this one is dead, however much time there is; it comes back as an error. None does when it is out of time.
    async fn patient_call(
        &mut self,
        connection: &mut MultiplexedConnection,
        batch: &[Asked],
    ) -> Result<Result<Vec<Answers>, RedisError>, Option<MultiplexedConnection>> {
        let patience = self.patience;
        let door = self.door.clone();
        let call = timeout(patience, self.caller.call(connection, batch));
        tokio::pin!(call);
        tokio::select! {
            biased;
            answer = &mut call => return answer.map_err(|_| None),
            () = sleep(MAX_SILENCE) => {}
        }
        let probe = async {
            loop {
                if let Ok(fresh) = door.connect().await {
                    // What was asked before was answered before, if it is answered; who has time lets it come in, as it may be
                    // this process that is behind.
                    sleep((patience / 16).clamp(RETRY, MAX_SILENCE)).await;
                    return fresh;
                }
                sleep(RETRY).await;
            }
        };
        tokio::select! {
            biased;
            answer = &mut call => answer.map_err(|_| None),
            fresh = probe => Err(Some(fresh)),
        }
    }
}

/// Waits for something, refusing what was handed in before it was known that there is no connection; nothing where nobody is left
/// to serve.
async fn meanwhile<T>(queue: &mut mpsc::Receiver<Work>, something: impl Future<Output = T>) -> Option<T> {
    tokio::pin!(something);
    loop {
        tokio::select! {
            biased;
            done = &mut something => return Some(done),
            work = queue.recv() => work?.refuse(&StoreError::Down),
        }
    }
}

type Asked = (Job, Reply<Answers>);

fn hand_out(batch: Vec<Asked>, answers: Vec<Answers>) {
    for ((_, reply), answers) in batch.into_iter().zip(answers) {
        let answers = match answers {
            Answers::Failed(code) => Err(StoreError::Refused(code)),
            answers => Ok(answers),
        };
        // Who has gone does not mind.
        let _ = reply.send(answers);
    }
}

/// Why the connection is no good, if an answer says so.
fn fatal(answers: &Answers) -> Option<String> {
    match answers {
        Answers::Failed(code) => is_fatal(code).then(|| code.clone()),
        _ => None,
    }
}

fn refuse(batch: Vec<Asked>, error: &StoreError) {
    batch.into_iter().for_each(|(_, reply)| drop(reply.send(Err(error.clone()))));
}

impl Work {
    fn refuse(self, error: &StoreError) {
        match self {
            Self::Hit(_, reply) => drop(reply.send(Err(error.clone()))),
            Self::Commands(_, reply) => drop(reply.send(Err(error.clone()))),
        }
    }

    fn is_abandoned(&self) -> bool {
        match self {
            Self::Hit(_, reply) => reply.is_closed(),
            Self::Commands(_, reply) => reply.is_closed(),
        }
    }
}

fn refusal(error: &RedisError) -> StoreError {
    StoreError::Refused(code(error).to_owned())
}

/// Whether after this error the connection is to be replaced, or the server asked until it can serve.
fn is_fatal(code: &str) -> bool {
    let cannot_serve = ["LOADING", "BUSY", "MASTERDOWN", "CLUSTERDOWN", "READONLY", "NOAUTH", "WRONGPASS"];
    cannot_serve.contains(&code) || code.starts_with("no ")
}

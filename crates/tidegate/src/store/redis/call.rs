//! A call: hits that go together are packed, the script is run as the server lets it run, and what it says is parted again. It knows nothing
//! of when there is a call, nor of connections that are no good.

use std::{
    iter,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use redis::{RedisError, aio::MultiplexedConnection};
use smallvec::SmallVec;

use super::{
    link::Health,
    script::SCRIPT,
    wire::{Answers, Reader, Writer},
};

/// Bytes of a call beside its script, keys, hits and plans, at most: a name and three numbers.
const FRAME: usize = 64;

/// What the script is asked for one hit.
pub(super) struct Job {
    /// In epoch microseconds; 0 for the server's.
    pub(super) time: u64,
    pub(super) intent: u8,
    pub(super) lines: SmallVec<[Line; 1]>,
    pub(super) is_inspection: bool,
}

/// One ask of a hit.
pub(super) struct Line {
    /// Its plan, the fields that come after the plan's number, and the state's key: in one piece, as each hit has one.
    pub(super) packed: Vec<u8>,
    /// Where the fields begin, and the key.
    pub(super) fields: usize,
    pub(super) key: usize,
    /// Other keys that belong to it.
    pub(super) others: Vec<Vec<u8>>,
}

impl Line {
    /// Its number, which is the cost where a hit is to be decided.
    fn number(&self) -> u64 {
        Reader(&self.fields()[1..]).number().unwrap_or_default()
    }

    fn plan(&self) -> &[u8] {
        &self.packed[..self.fields]
    }

    fn fields(&self) -> &[u8] {
        &self.packed[self.fields..self.key]
    }

    fn keys(&self) -> impl Iterator<Item = &[u8]> {
        iter::once(&self.packed[self.key..]).chain(self.others.iter().map(Vec::as_slice))
    }
}

/// Calls the script, by one connection.
pub(super) struct Caller {
    health: Arc<Health>,
    /// Whether the server may have the script as a function, as far as is known.
    has_functions: bool,
}

impl Caller {
    pub(super) fn new(health: &Arc<Health>) -> Self {
        Self { health: Arc::clone(health), has_functions: true }
    }

    /// One call for a batch: what the script answered, for each hit.
    pub(super) async fn call<T>(
        &mut self,
        connection: &mut MultiplexedConnection,
        batch: &[(Job, T)],
    ) -> Result<Vec<Answers>, RedisError> {
        let (hits, plans) = request(batch);
        let time = batch[0].0.time;
        // With a clock that is not the server's, nothing may expire by the server's.
        let shortest_ttl = if time == 0 { 0 } else { 600_000 };
        let keys = || batch.iter().flat_map(|(job, _)| &job.lines).flat_map(Line::keys);
        // Room for all of it at once: to grow in steps takes longer than to count.
        let (count, bytes) = keys().fold((0, 0), |(count, bytes), key| (count + 1, bytes + key.len()));
        let rest = hits.len() + plans.iter().map(|plan| plan.len()).sum::<usize>() + FRAME;
        let command = |name: &'static str, script: &'static str| {
            let mut command = redis::Cmd::with_capacity(count + plans.len() + 6, bytes + rest + script.len());
            command.arg(name).arg(script).arg(count);
            for key in keys() {
                command.arg(key);
            }
            command.arg(time).arg(shortest_ttl).arg(&hits).arg(&plans);
            command
        };
        self.health.calls.fetch_add(1, Relaxed);
        self.health.hits.fetch_add(batch.len() as u64, Relaxed);
        let answer = self.execute(connection, command).await?;
        let unreadable = || RedisError::from((redis::ErrorKind::UnexpectedReturnType, "not an answer of our script"));
        let mut reader = Reader(&answer);
        let now = reader.number().ok_or_else(unreadable)?;
        if time == 0 {
            self.health.set_clock(now as i64);
        }
        let answers = |(job, _): &(Job, T)| {
            let costs = (!job.is_inspection).then(|| job.lines.iter().map(Line::number));
            reader.answers(now, costs).ok_or_else(unreadable)
        };
        batch.iter().map(answers).collect()
    }

    /// What the script returns, run as the server lets it run. It is asked again only where the server has said that it did not run.
    async fn execute(
        &mut self,
        connection: &mut MultiplexedConnection,
        command: impl Fn(&'static str, &'static str) -> redis::Cmd,
    ) -> Result<Vec<u8>, RedisError> {
        if self.has_functions {
            match call_function(connection, command("FCALL", &SCRIPT.function)).await {
                Err(error) if has_not_run_this_time(&error) => {}
                Err(error) if cannot_run(&error) => {
                    tracing::info!("the store has no functions for this user: it is sent scripts, which cost it more");
                    self.has_functions = false;
                }
                answer => return answer,
            }
        }
        let answer = command("EVALSHA", &SCRIPT.sha).query_async(connection).await;
        match answer {
            Err(error) if error.code() == Some("NOSCRIPT") => command("EVAL", &SCRIPT.text).query_async(connection).await,
            answer => answer,
        }
    }
}

/// The hits of a batch and their plans, as decide.lua takes them: those that are alike but for their keys are counted.
fn request<T>(batch: &[(Job, T)]) -> (Vec<u8>, Vec<&[u8]>) {
    let mut plans: Vec<&[u8]> = Vec::new();
    let mut hits = Writer::default();
    // The last one that is not like the one before it: where it is, and how many there are.
    let (mut last, mut times) = (0..0, 0_u16);
    for (job, _) in batch {
        let start = hits.0.len();
        hits.short(1);
        hits.byte(job.intent);
        hits.short(job.lines.len() as u16);
        for line in &job.lines {
            let known = plans.iter().position(|plan| *plan == line.plan());
            let index = known.unwrap_or_else(|| {
                plans.push(line.plan());
                plans.len() - 1
            });
            hits.short(index as u16 + 1);
            hits.0.extend(line.fields());
        }
        if times > 0 && hits.0[last.start + 2..last.end] == hits.0[start + 2..] {
            times += 1;
            hits.0.truncate(start);
            hits.0[last.start..last.start + 2].copy_from_slice(&times.to_be_bytes());
        } else {
            (last, times) = (start..hits.0.len(), 1);
        }
    }
    (hits.0, plans)
}

/// Calls the function, and brings it where the server does not have it.
async fn call_function(connection: &mut MultiplexedConnection, call: redis::Cmd) -> Result<Vec<u8>, RedisError> {
    match call.query_async(connection).await {
        Err(error) if is_unknown_function(&error) => {
            redis::cmd("FUNCTION").arg("LOAD").arg("REPLACE").arg(&SCRIPT.library).exec_async(connection).await?;
            call.query_async(connection).await
        }
        answer => answer,
    }
}

fn is_unknown_function(error: &RedisError) -> bool {
    error.detail() == Some("Function not found")
}

/// Whether a function did not run that may the next time: somebody has dropped it just now, or the server takes no writes. A script is
/// refused then only where it writes: denials are answered.
fn has_not_run_this_time(error: &RedisError) -> bool {
    is_unknown_function(error) || matches!(error.code(), Some("OOM" | "MISCONF" | "NOREPLICAS"))
}

/// Whether the server has no functions at all, or none for this user.
fn cannot_run(error: &RedisError) -> bool {
    error.code() == Some("NOPERM") || error.detail().is_some_and(|detail| detail.starts_with("unknown command"))
}

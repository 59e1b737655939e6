//! Who is denied most, over all instances: a sorted set for each policy and hour, which each instance adds to now and then.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use super::Redis;
use crate::{
    Ranked, Store as _,
    algorithm::Verdict,
    error::StoreError,
    limiter::Inner,
    set::{PolicySet, Prepared},
    store::{Intent, Record},
    top::{HOUR_US, TOLD},
};

/// Ranked keys are written this often.
const RANKING_EVERY: Duration = Duration::from_secs(1);

/// Keys that a ranking holds.
const RANKED: i64 = 1000;

impl Redis {
    /// The sorted set of the keys that a policy denied most in an hour. A policy's name has no braces, so no state is there.
    fn ranking_key(&self, prepared: &Prepared, hour: u64) -> String {
        format!("{}:{{{}}}:denied:{hour}", self.prefix, prepared.policy.name)
    }
}

impl Inner<Redis> {
    /// The keys that a policy denied most, worst first.
    pub(super) async fn top(&self, set: &PolicySet, prepared: &Prepared, n: usize) -> Result<Vec<Ranked>, StoreError> {
        self.write_ranking(set).await?;
        let hour = self.hour();
        let mut commands = ::redis::pipe();
        let hours = [Some(hour), hour.checked_sub(1)].into_iter().flatten();
        let keys: Vec<String> = hours.map(|hour| self.store.ranking_key(prepared, hour)).collect();
        commands.cmd("ZUNION").arg(keys.len()).arg(&keys).arg("WITHSCORES");
        let replies = self.in_time(self.store.link().send(commands)).await?;
        let counted: Vec<(String, f64)> =
            replies.first().and_then(|reply| ::redis::from_redis_value_ref(reply).ok()).ok_or_else(StoreError::unreadable)?;
        let mut ranks: Vec<Ranked> = counted.into_iter().map(|(key, denied)| Ranked { key, denied: denied as u64 }).collect();
        ranks.sort_by_key(|rank| std::cmp::Reverse(rank.denied));
        ranks.truncate(n.min(TOLD));
        Ok(ranks)
    }

    fn hour(&self) -> u64 {
        self.clock.now().saturating_add_signed(self.store.ahead()) / HOUR_US
    }

    /// Counts denials for the ranking, and sees to it that it is written soon.
    pub(super) fn count_denials(self: &Arc<Self>, set: &PolicySet, records: &[Record]) {
        let now = self.clock.now();
        records.iter().for_each(|record| {
            set.policies[usize::from(record.ask.policy)].count(&record.ask, &record.answer, Intent::Check, now)
        });
        let any = records.iter().any(|record| record.ask.enforced && record.answer.verdict != Verdict::Allowed);
        if any && !self.store.ranking.swap(true, Relaxed) {
            // The limiter may go while this waits.
            let inner = Arc::downgrade(self);
            let runtime = self.store.runtime.get().expect("a store is started with its limiter");
            runtime.spawn(async move {
                tokio::time::sleep(RANKING_EVERY).await;
                if let Some(inner) = inner.upgrade() {
                    inner.store.ranking.store(false, Relaxed);
                    let set = inner.set.load_full();
                    // What is not written now is lost: a ranking is not worth more.
                    let _ = inner.write_ranking(&set).await;
                }
            });
        }
    }

    /// Adds to the ranking what has been denied here since it was last written.
    async fn write_ranking(&self, set: &PolicySet) -> Result<(), StoreError> {
        let hour = self.hour();
        let mut commands = ::redis::pipe();
        for prepared in &set.policies {
            let taken = prepared.denials.take();
            if taken.is_empty() {
                continue;
            }
            let ranking = self.store.ranking_key(prepared, hour);
            for (key, denied) in taken {
                commands.cmd("ZINCRBY").arg(&ranking).arg(denied).arg(prepared.shown(key)).ignore();
            }
            commands.cmd("ZREMRANGEBYRANK").arg(&ranking).arg(0).arg(-(RANKED + 1)).ignore();
            commands.cmd("PEXPIRE").arg(&ranking).arg(2 * HOUR_US / 1_000).ignore();
        }
        if commands.is_empty() {
            return Ok(());
        }
        self.in_time(self.store.link().send(commands)).await.map(drop)
    }
}

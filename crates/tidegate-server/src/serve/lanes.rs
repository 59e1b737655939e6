//! Lanes: threads that each serve connections of their own, on a runtime of their own. A connection stays on its lane, so that nothing of a
//! request is handed from thread to thread. It knows nothing of what is served.
//!
//! On one runtime of several threads a request that waits for Redis is mostly answered on another thread than it has come in on, and each
//! such step wakes a thread, which takes time of both (`bench/README.md` has what that came to).

use std::{
    io,
    sync::Arc,
    thread::{self, JoinHandle},
};

use tokio::{
    runtime::{Builder, Handle},
    sync::oneshot,
};

/// Threads that serve. Dropped, they end, and with them whatever they still do.
pub struct Lanes(Vec<Lane>);

struct Lane {
    runtime: Handle,
    /// One share for each connection, beside this.
    seats: Seat,
    /// Dropped, it ends the thread.
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Is kept for as long as a connection is served.
pub type Seat = Arc<()>;

/// How many lanes there are for states in memory, unless it is said: one for every two cores. Such a lane never waits for anybody but who
/// asks, and who asks takes as much of a machine that both are on, or the system does for those who are not. One that always has something
/// to do has not to be woken, which costs as much as a decision (`bench/README.md`).
pub fn in_memory() -> usize {
    cores().div_ceil(2)
}

/// How many there are for Redis, each with a connection to it: as many as the machine can run at once, because they wait; but a few at most, as
/// each gathers batches of its own and Redis decides on one thread.
pub fn on_redis() -> usize {
    cores().min(4)
}

fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

impl Lanes {
    /// Starts so many, on each of which `first` is called before anything else.
    ///
    /// # Errors
    /// When the system gives no more threads.
    pub async fn start(count: usize, first: impl Fn() + Clone + Send + 'static) -> io::Result<Self> {
        let mut lanes = Self(Vec::with_capacity(count));
        for _ in 0..count {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let (end, ended) = oneshot::channel();
            let (begin, begun) = oneshot::channel();
            let mut lane = Lane { runtime: runtime.handle().clone(), seats: Seat::default(), end: Some(end), thread: None };
            let first = first.clone();
            let serve = move || {
                runtime.block_on(async {
                    first();
                    drop(first);
                    let _ = begin.send(());
                    let _ = ended.await;
                });
                // A look-up of a name may be under way, which is not waited for.
                runtime.shutdown_background();
            };
            lane.thread = Some(thread::Builder::new().name("lane".to_owned()).spawn(serve)?);
            lanes.0.push(lane);
            let _ = begun.await;
        }
        Ok(lanes)
    }

    /// The lane with the fewest connections, and a seat on it.
    pub fn pick(&self) -> (&Handle, Seat) {
        let lane = self.0.iter().min_by_key(|lane| Arc::strong_count(&lane.seats)).expect("there is one at least");
        (&lane.runtime, Arc::clone(&lane.seats))
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        self.0.iter_mut().for_each(|lane| drop(lane.end.take()));
        for thread in self.0.iter_mut().filter_map(|lane| lane.thread.take()) {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::{collections::HashSet, future::pending};

    use super::*;

    #[tokio::test]
    async fn connections_go_where_the_fewest_are() {
        let lanes = Lanes::start(3, || ()).await.unwrap();
        let take = async || {
            let (lane, seat) = lanes.pick();
            (lane.spawn(async { thread::current().id() }).await.unwrap(), seat)
        };
        let mut taken = [take().await, take().await, take().await].to_vec();
        assert_eq!(taken.iter().map(|(thread, _)| *thread).collect::<HashSet<_>>().len(), 3);
        let (left, _) = taken.remove(1);
        assert_eq!(take().await.0, left);
    }

    #[tokio::test]
    async fn what_lanes_do_ends_with_them() {
        let lanes = Lanes::start(2, || ()).await.unwrap();
        let (lane, seat) = lanes.pick();
        let kept = Arc::downgrade(&seat);
        lane.spawn(async move {
            pending::<()>().await;
            drop(seat);
        });
        drop(lanes);
        assert_eq!(kept.strong_count(), 0);
    }
}

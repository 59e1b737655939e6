//! Several processes at once on one key admit exactly the limit. The processes are this test binary, run again for one test
//! that works for its parent.

use std::{
    env,
    io::{BufRead as _, BufReader, Write as _, stdin, stdout},
    process::{Child, ChildStdout, Command, Stdio},
    time::Instant,
};

use tidegate::{Algorithm, Limiter, Policy, Quota, Redis};
use tidegate_testkit::Server;
use tokio::{runtime::Runtime, task::JoinSet};

use crate::limiters::{avoid_midnight, by_store, connected, patient};

const PROCESSES: usize = 4;
const TASKS: u64 = 16;
/// Of each task.
const CHECKS: u64 = 50;
const LIMIT: u64 = 2500;
/// With the address of the server, the algorithm, the limit and the highest cost.
const SETTINGS: &str = "TIDEGATE_TEST_WORKER";

/// What a process was answered.
struct Told {
    admitted: u64,
    /// The smallest cost that was denied.
    denied: u64,
}

async fn limiter(url: &str, algorithm: Algorithm, limit: u64) -> Limiter<Redis> {
    // By the day: nothing comes back while a test runs.
    let policy = Policy::new("requests", Quota::per_day(limit)).algorithm(algorithm);
    connected(Limiter::builder().policy(policy).store(patient(url))).await
}

#[test]
#[ignore = "run by the tests of this file, in processes of their own"]
fn worker() {
    let Ok(settings) = env::var(SETTINGS) else { return };
    let mut settings = settings.split(' ');
    let mut next = || settings.next().unwrap();
    let (url, algorithm, limit, highest) = (next(), next().parse().unwrap(), next().parse().unwrap(), next().parse().unwrap());
    let told = Runtime::new().unwrap().block_on(async {
        let limiter = limiter(url, algorithm, limit).await;
        println!("worker is ready");
        stdin().read_line(&mut String::new()).unwrap();
        work(&limiter, highest).await
    });
    println!("worker has {} {}", told.admitted, told.denied);
    stdout().flush().unwrap();
}

async fn work(limiter: &Limiter<Redis>, highest: u64) -> Told {
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let limiter = limiter.clone();
        tasks.spawn(async move {
            let mut told = Told { admitted: 0, denied: u64::MAX };
            for index in 0..CHECKS {
                let cost = 1 + (task + index) % highest;
                let decision = by_store(limiter.check_n("one key", cost).await);
                if decision.is_allowed() {
                    told.admitted += cost;
                } else {
                    told.denied = told.denied.min(cost);
                }
            }
            told
        });
    }
    let merge = |all: Told, one: Told| Told { admitted: all.admitted + one.admitted, denied: all.denied.min(one.denied) };
    tasks.join_all().await.into_iter().fold(Told { admitted: 0, denied: u64::MAX }, merge)
}

/// A process that works, once it is told to.
struct Worker {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Worker {
    fn start(settings: &str) -> Self {
        let name = format!("{}::worker", module_path!().split_once("::").unwrap().1);
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", &name, "--ignored", "--nocapture"])
            .env(SETTINGS, settings)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, output }
    }

    /// What it says after these words, which may come behind others of the test harness.
    fn said(&mut self, words: &str) -> String {
        let mut lines = (&mut self.output).lines().map(Result::unwrap);
        lines.find_map(|line| Some(line.split_once(words)?.1.to_owned())).expect("the worker lives")
    }

    fn finish(mut self) -> Told {
        let said = self.said("worker has ");
        let (admitted, denied) = said.split_once(' ').unwrap();
        let told = Told { admitted: admitted.parse().unwrap(), denied: denied.parse().unwrap() };
        assert!(self.child.wait().unwrap().success());
        told
    }
}

/// Has several processes at one key, and compares what they were told with what the store has counted.
fn processes_share(limit: u64, highest: u64) {
    avoid_midnight();
    let server = Server::start();
    let runtime = Runtime::new().unwrap();
    for algorithm in Algorithm::RATES {
        let settings = format!("{} {algorithm} {limit} {highest}", server.url());
        let mut workers: Vec<Worker> = (0..PROCESSES).map(|_| Worker::start(&settings)).collect();
        workers.iter_mut().for_each(|worker| drop(worker.said("worker is ready")));
        let begun = Instant::now();
        workers.iter_mut().for_each(|worker| worker.child.stdin.take().unwrap().write_all(b"go\n").unwrap());
        let told: Vec<Told> = workers.into_iter().map(Worker::finish).collect();

        let admitted: u64 = told.iter().map(|told| told.admitted).sum();
        let denied = told.iter().map(|told| told.denied).min().unwrap();
        let left = runtime.block_on(async {
            let limiter = self::limiter(&server.url(), *algorithm, limit).await;
            by_store(limiter.peek("one key").await).remaining().unwrap()
        });
        assert!(begun.elapsed() < Quota::per_day(limit).window() / limit as u32, "too slow: buckets have refilled");
        assert_eq!(admitted + left, limit, "{algorithm}: each charge was told to exactly one");
        assert!(left < denied, "{algorithm}: a cost of {denied} was denied, and {left} were left");
        assert!(highest > 1 || left == 0, "{algorithm}: {left} left");
    }
}

#[test]
fn processes_admit_exactly_the_limit() {
    processes_share(LIMIT, 1);
}

#[test]
fn processes_admit_a_limit_of_one_once() {
    processes_share(1, 1);
}

#[test]
fn processes_admit_mixed_costs_up_to_the_limit() {
    processes_share(LIMIT, 7);
}

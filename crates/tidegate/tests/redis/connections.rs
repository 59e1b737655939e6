//! Ways to a server: TCP, a Unix socket, TLS, users and databases; what the limiter does where it is not let in, and what it
//! needs to be allowed. Passwords appear nowhere.

use std::{
    collections::VecDeque,
    fmt::{self, Write as _},
    sync::{Arc, Mutex},
    time::Duration,
};

use tidegate::{Algorithm, ConfigError, Hit, Limiter, ManualClock, OnStoreError, Policy, Quota, Redis, Source, StoreError};
use tidegate_testkit::Server;
use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};

use crate::{
    limiters::{connected, keys, patient, sources},
    twins::{up, without_functions},
};

const PASSWORD: &str = "hunter2:@/%";
/// The same in a URL.
const IN_URL: &str = "hunter2%3A%40%2F%25";

/// What the limiter needs of a user, beside a password and one of the ways below: every verb, every algorithm, the ranking. `+select` as
/// well where the address names a database other than 0, and `+info` if `Status::evicts` is to be known.
const ACL: &str = "resetkeys ~rl:* resetchannels -@all +ping +time +get +set +getrange +setrange +strlen +del +pexpire +pttl \
    +hget +hset \
    +zadd +zcard +zcount +zincrby +zrange +zrem +zremrangebyrank +zremrangebyscore +zscore +zunion";

/// The ways to run a script: as a function, or as it is.
const WAYS: [&str; 2] = ["+fcall +function|load", "+evalsha +eval"];

const WINDOW: Duration = Duration::from_secs(60);

fn policies() -> Vec<Policy> {
    let policy = |algorithm: &Algorithm| Policy::new(algorithm.name(), Quota::per_minute(5)).algorithm(*algorithm);
    Algorithm::ALL.iter().map(policy).collect()
}

/// A limiter with a policy of every algorithm.
fn limiter(store: Redis) -> Limiter<Redis> {
    Limiter::builder().policies(policies()).store(store).build().unwrap()
}

/// The store answers through this one.
async fn serves(store: Redis) -> Limiter<Redis> {
    let limiter = connected(Limiter::builder().policies(policies()).store(store)).await;
    let decision = limiter.check("a").await.unwrap();
    assert_eq!(sources(&decision), [Source::Store; 7]);
    let status = limiter.store().status();
    assert_eq!((status.fallbacks, status.trouble), (0, None));
    limiter
}

/// This one is not let in, and decides by itself.
async fn falls_back(store: Redis) -> Limiter<Redis> {
    let limiter = limiter(store);
    for _ in 0..7 {
        let decision = limiter.check("a").await.unwrap();
        assert_eq!(sources(&decision), [Source::Fallback; 7]);
        assert!(!limiter.store().status().is_up);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let status = limiter.store().status();
    assert_eq!((status.connects, status.hits, status.fallbacks), (0, 0, 7));
    assert!(!limiter.check("a").await.unwrap().is_allowed(), "five a minute, by its own memory");
    limiter
}

#[tokio::test]
async fn tcp_and_unix_socket() {
    let server = Server::start();
    let first = serves(patient(&server.url())).await;
    let second = serves(patient(&server.unix_url())).await;
    // One server, one count.
    assert_eq!(first.remaining("a").await, Ok(Some(3)));
    assert_eq!(second.remaining("a").await, Ok(Some(3)));
}

#[tokio::test]
async fn valkey() {
    match Server::try_valkey() {
        Some(server) => {
            drop(serves(patient(&server.url())).await);
            drop(serves(patient(&server.unix_url())).await);
        }
        None => println!("no valkey-server is installed: scripts/setup says how"),
    }
}

#[tokio::test]
async fn tls_with_a_certificate_and_not_without_one() {
    let server = Server::builder().tls().start();
    let certificates = server.certificates();
    let trusting = || patient(&server.tls_url()).root_certificate(&*certificates.root);
    drop(serves(trusting().client_certificate(&*certificates.client_cert, &*certificates.client_key)).await);
    drop(falls_back(trusting()).await);

    // Another authority's server is not trusted, nor is its client.
    let stranger = Server::builder().tls().start();
    let strange = stranger.certificates();
    let client = |store: Redis| store.client_certificate(&*certificates.client_cert, &*certificates.client_key);
    drop(falls_back(client(patient(&server.tls_url()).root_certificate(&*strange.root))).await);
    drop(falls_back(trusting().client_certificate(&*strange.client_cert, &*strange.client_key)).await);
    // The machine does not trust it either.
    drop(falls_back(client(patient(&server.tls_url()))).await);
}

#[tokio::test]
async fn a_client_certificate_that_is_none_is_refused_at_once() {
    let server = Server::builder().tls().start();
    let store = patient(&server.tls_url()).client_certificate("no certificate", "no key");
    assert_eq!(Limiter::builder().policies(policies()).store(store).build().map(drop), Err(ConfigError::Address));
}

#[tokio::test]
async fn a_root_certificate_that_is_none_is_refused_at_once() {
    let server = Server::builder().tls().start();
    let store = patient(&server.tls_url()).root_certificate("no certificate");
    assert_eq!(Limiter::builder().policies(policies()).store(store).build().map(drop), Err(ConfigError::Address));
}

/// Makes a user who may do what the words say.
fn set_user(connection: &mut redis::Connection, words: &str) {
    let mut command = redis::cmd("ACL");
    command.arg("SETUSER").arg("lim").arg("reset").arg("on").arg(format!(">{PASSWORD}"));
    command.arg(words.split_whitespace().collect::<Vec<_>>());
    command.exec(connection).unwrap();
}

fn as_user(server: &Server, password: &str, database: &str) -> Redis {
    patient(&format!("redis://lim:{password}@127.0.0.1:{}/{database}", server.port()))
}

#[tokio::test]
async fn a_user_and_a_password() {
    let server = Server::start_with(&["--requirepass", "other"]);
    let mut connection = server.connection();
    redis::cmd("AUTH").arg("other").exec(&mut connection).unwrap();
    set_user(&mut connection, "allkeys +@all");
    let limiter = serves(as_user(&server, IN_URL, "")).await;
    let shown = format!("{:?} {limiter:?} {:?}", limiter.store(), Limiter::builder().store(as_user(&server, IN_URL, "")));
    assert!(!shown.contains("hunter2"), "{shown}");
    // The default user has a password only.
    drop(serves(patient(&format!("redis://:other@127.0.0.1:{}/", server.port()))).await);
    // Beside the address, as it is: nothing of it is to be escaped.
    drop(serves(patient(&format!("redis://lim@127.0.0.1:{}/", server.port())).password(PASSWORD)).await);
    // In the address of a socket they stand at its end.
    drop(serves(patient(&format!("{}?user=lim&pass={IN_URL}", server.unix_url()))).await);

    drop(falls_back(as_user(&server, "hunter3", "")).await);
    drop(falls_back(patient(&server.url())).await);
}

#[tokio::test]
async fn a_database_by_its_number() {
    let server = Server::start();
    let limiter = serves(patient(&format!("{}7", server.url()))).await;
    let mut connection = server.connection();
    assert_eq!(keys(&mut connection), [""; 0]);
    redis::cmd("SELECT").arg(7).exec(&mut connection).unwrap();
    assert_eq!(keys(&mut connection).len(), 7);
    drop(serves(patient(&format!("{}?db=7", server.unix_url()))).await);
    assert_eq!(limiter.remaining("a").await, Ok(Some(3)));
    // One that there is not.
    drop(falls_back(patient(&format!("{}99", server.url()))).await);
}

#[test]
fn a_limiter_outside_of_a_runtime_is_refused() {
    let built = Limiter::builder().policies(policies()).store(patient("redis://127.0.0.1:1/")).build();
    assert_eq!(built.map(drop), Err(ConfigError::Runtime));
    assert!(ConfigError::Runtime.to_string().contains("tokio runtime"));
}

#[test]
fn what_is_no_address_is_refused_without_showing_it() {
    for url in [
        "",
        "hunter2",
        "hunter2@127.0.0.1",
        "http://user:hunter2@127.0.0.1/",
        "redis://user:hunter2@/",
        "redis://user:hunter2@127.0.0.1:port/",
        "redis://user:hunter2@127.0.0.1:70000/",
        "redis://user:hunter2@127.0.0.1/first",
        "redis://user:hunter2@[::1/",
        "unix://user:hunter2@/socket?db=first",
        "redis:/hunter2",
    ] {
        let refused = Redis::new(url);
        let Err(error) = refused else { panic!("{url} is an address: {refused:?}") };
        assert_eq!(error, ConfigError::Address, "{url}");
        let shown = format!("{error} {error:?}");
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}

/// Everything that is logged, as text.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<String>>);

impl fmt::Display for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.lock().unwrap())
    }
}

impl Visit for Log {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        write!(self.0.lock().unwrap(), "{field}={value:?} ").unwrap();
    }
}

impl Subscriber for Log {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn event(&self, event: &Event<'_>) {
        event.record(&mut self.clone());
        self.0.lock().unwrap().push('\n');
    }

    fn new_span(&self, span: &span::Attributes<'_>) -> span::Id {
        span.record(&mut self.clone());
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, values: &span::Record<'_>) {
        values.record(&mut self.clone());
    }

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// What is logged when the password is wrong.
async fn log_of_a_wrong_password() -> String {
    let log = Log::default();
    // On one thread, whose log it is.
    let _guard = tracing::subscriber::set_default(log.clone());
    let server = Server::start_with(&["--requirepass", "right"]);
    // A line that another thread came to for the first time just as this log began may be taken for one that nobody reads.
    tracing::callsite::rebuild_interest_cache();
    let limiter = falls_back(patient(&format!("redis://:hunter2@127.0.0.1:{}/", server.port()))).await;
    let told = async {
        while log.to_string().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), told).await.expect("something is logged");
    // It goes on trying.
    tokio::time::sleep(Duration::from_millis(350)).await;
    assert_eq!(limiter.store().status().trouble.as_deref(), Some("WRONGPASS"));
    log.to_string()
}

#[tokio::test]
async fn why_there_is_no_connection_is_told_without_the_password() {
    // Longer than a part of a name can be: nobody has to be asked.
    let nowhere = format!("redis://:hunter2@{}/", "a".repeat(64));
    for (address, why) in [
        ("redis://:hunter2@127.0.0.1:1/", "no connection: Connection refused"),
        (&nowhere, "no connection: failed to lookup address information"),
        ("unix:///none/redis.sock?pass=hunter2", "no connection: No such file or directory"),
    ] {
        let limiter = falls_back(patient(address)).await;
        let told = async {
            loop {
                if let Some(trouble) = limiter.store().status().trouble {
                    return trouble;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let trouble = tokio::time::timeout(Duration::from_secs(10), told).await.expect("it is told");
        assert!(trouble.starts_with(why) && !trouble.contains("hunter2"), "{trouble}");
    }
}

#[tokio::test]
async fn a_wrong_password_is_not_logged_and_the_fact_is_once() {
    let log = log_of_a_wrong_password().await;
    assert!(!log.contains("hunter2"), "{log}");
    assert_eq!(log.matches("the store cannot be reached").count(), 1, "{log}");
}

#[tokio::test]
async fn the_log_says_that_it_is_the_password() {
    let log = log_of_a_wrong_password().await;
    assert!(log.contains("WRONGPASS"), "{log}");
}

/// Every verb under every algorithm, in such an order that every command of every script is called. `pass` lets some time pass.
async fn verbs(limiter: &Limiter<Redis>, pass: impl AsyncFn(Duration)) -> Result<(), StoreError> {
    let grain = WINDOW / 100;
    let mut receipts = VecDeque::new();
    for _ in 0..5 {
        receipts.extend(limiter.check("a").await?.take_receipt());
        pass(grain).await;
    }
    let _ = limiter.check("a").await?;
    let _ = limiter.check_n("a", 4).await?;
    let _ = limiter.peek("a").await?;
    // A lease that nobody holds, and one that is its key's last.
    let _ = limiter.renew(Hit::from("a").lease("b")).await?;
    let _ = limiter.release(Hit::from("a").lease("b")).await?;
    let _ = limiter.check(Hit::from("b").lease("b")).await?;
    let _ = limiter.release(Hit::from("b").lease("b")).await?;
    // The last, one in the middle, the first; one by less and one by more.
    for (index, actual) in [(4, 0), (1, 0), (0, 0), (0, 3), (0, 1)] {
        let receipt = receipts.remove(index).unwrap();
        let _ = if actual == 0 { limiter.refund(receipt).await? } else { limiter.settle(receipt, actual).await? };
    }
    // Some of it expires, then the rest.
    let _ = limiter.charge(Hit::from("a").cost(2)).await?;
    pass(WINDOW - 2 * grain).await;
    let _ = limiter.charge(Hit::from("a").cost(2)).await?;
    pass(3 * grain).await;
    let _ = limiter.charge(Hit::from("a").cost(2)).await?;
    pass(2 * WINDOW).await;
    let _ = limiter.check("a").await?;
    // More grains than a quarter of a window has.
    for _ in 0..30 {
        let _ = limiter.charge("a").await?;
        pass(grain).await;
    }
    for policy in policies() {
        limiter.inspect(policy.name(), "a").unwrap().await?;
        limiter.top(policy.name(), 10).unwrap().await?;
    }
    limiter.reset("a").await.map(drop)
}

/// By the server's time and by the test's, for which the server need not be asked.
async fn every_verb(server: &Server) -> Result<(), StoreError> {
    let strict = policies().into_iter().map(|policy| policy.on_store_error(OnStoreError::Error));
    let builder = Limiter::builder().policies(strict);
    let clock = ManualClock::default();
    let told = builder.clock(clock.clone()).store(as_user(server, IN_URL, "")).build().unwrap();
    up(&told).await;
    verbs(&told, async |time| clock.advance(time)).await?;
    let strict = policies().into_iter().map(|policy| policy.on_store_error(OnStoreError::Error));
    let asked = Limiter::builder().policies(strict).store(as_user(server, IN_URL, "").prefix("rl:asked")).build().unwrap();
    up(&asked).await;
    asked.check("a").await.map(drop)
}

async fn the_user_needs_no_more(server: &Server) {
    for way in WAYS {
        redis::cmd("FLUSHALL").exec(&mut server.connection()).unwrap();
        set_user(&mut server.connection(), &format!("{ACL} {way}"));
        assert_eq!(every_verb(server).await, Ok(()), "{way}");
    }
    // Neither the name of the client nor the server's memory is worth a connection.
    let limiter = limiter(as_user(server, IN_URL, ""));
    up(&limiter).await;
    assert_eq!(limiter.store().status().evicts, None);
    assert_eq!(sources(&limiter.check("b").await.unwrap()), [Source::Store; 7]);
}

#[tokio::test]
async fn a_user_needs_no_more_on_redis() {
    the_user_needs_no_more(&Server::start()).await;
}

#[tokio::test]
async fn a_user_needs_no_more_on_valkey() {
    match Server::try_valkey() {
        Some(server) => the_user_needs_no_more(&server).await,
        None => println!("no valkey-server is installed: scripts/setup says how"),
    }
}

#[tokio::test]
async fn a_user_needs_no_less() {
    let server = Server::start();
    let mut connection = server.connection();
    // Whether there is a connection at all is another test.
    for way in WAYS {
        let needed = format!("{ACL} {way}");
        for command in needed.split_whitespace().filter_map(|word| word.strip_prefix('+')).filter(|command| *command != "ping") {
            for forget in [["FLUSHALL", "SYNC"], ["SCRIPT", "FLUSH"], ["FUNCTION", "FLUSH"]] {
                redis::cmd(forget[0]).arg(forget[1]).exec(&mut connection).unwrap();
            }
            set_user(&mut connection, &format!("{needed} -{command}"));
            let done = every_verb(&server).await;
            assert!(matches!(done, Err(StoreError::Refused(_))), "{way} without {command}: {done:?}");
        }
    }
}

/// The script is a function where the user may have it so, and else it is sent; who asks finds no difference.
#[tokio::test]
async fn a_script_runs_as_the_user_may_have_it() {
    let cases: [(&str, &[&str]); 4] = [
        ("+fcall +function|load +evalsha +eval", &["fcall", "function|load"]),
        // It is asked for, and not there.
        ("+fcall +evalsha +eval", &["eval", "evalsha", "fcall"]),
        ("+function|load +evalsha +eval", &["eval", "evalsha"]),
        ("+evalsha +eval", &["eval", "evalsha"]),
    ];
    for (way, expected) in cases {
        let server = Server::start();
        set_user(&mut server.connection(), &format!("{ACL} {way}"));
        drop(serves(as_user(&server, IN_URL, "")).await);
        assert_eq!(run_by(&server), expected, "{way}");
    }
    let server = without_functions();
    drop(serves(patient(&server.url())).await);
    assert_eq!(run_by(&server), ["eval", "evalsha"], "a server that does not know them");
}

/// Who may not bring a function may call one that is there.
#[tokio::test]
async fn a_function_that_is_there_is_called() {
    let server = Server::start();
    drop(serves(patient(&server.url())).await);
    set_user(&mut server.connection(), &format!("{ACL} +fcall"));
    redis::cmd("CONFIG").arg("RESETSTAT").exec(&mut server.connection()).unwrap();
    let limiter = limiter(as_user(&server, IN_URL, ""));
    up(&limiter).await;
    assert_eq!(sources(&limiter.check("b").await.unwrap()), [Source::Store; 7]);
    assert_eq!(run_by(&server), ["fcall"]);
}

/// The commands by which scripts have run.
fn run_by(server: &Server) -> Vec<String> {
    let info: String = redis::cmd("INFO").arg("commandstats").query(&mut server.connection()).unwrap();
    let ran = |line: &str| {
        let (name, counts) = line.strip_prefix("cmdstat_")?.split_once(':')?;
        let of_scripts = ["fcall", "function|load", "evalsha", "eval"].contains(&name);
        (of_scripts && !counts.starts_with("calls=0,")).then(|| name.to_owned())
    };
    let mut commands: Vec<String> = info.lines().filter_map(ran).collect();
    commands.sort();
    commands
}

#[tokio::test]
async fn a_user_who_may_not_ping_is_served() {
    let server = Server::start();
    set_user(&mut server.connection(), &format!("{ACL} {} -ping", WAYS[0]));
    drop(serves(as_user(&server, IN_URL, "")).await);
}

#[tokio::test]
async fn a_user_of_another_database_may_select_it() {
    let server = Server::start();
    set_user(&mut server.connection(), &format!("{ACL} {} +select", WAYS[0]));
    drop(serves(as_user(&server, IN_URL, "3")).await);
    set_user(&mut server.connection(), &format!("{ACL} {}", WAYS[0]));
    drop(falls_back(as_user(&server, IN_URL, "3")).await);
}

/// Other keys than those with the prefix are none of the limiter's.
#[tokio::test]
async fn a_user_may_not_touch_another_prefix() {
    let server = Server::start();
    set_user(&mut server.connection(), &format!("{ACL} {}", WAYS[0]));
    let limiter = limiter(as_user(&server, IN_URL, "").prefix("other"));
    up(&limiter).await;
    let decision = limiter.check("a").await.unwrap();
    assert_eq!(sources(&decision), [Source::Fallback; 7]);
    assert_eq!(keys(&mut server.connection()), [""; 0]);
}

/// A thread that has a connection of its own is served by it, counts with all others, and takes it along when it ends.
#[tokio::test]
async fn a_thread_can_have_a_connection_of_its_own() {
    let server = Server::start();
    let limiter =
        connected(Limiter::builder().policy(Policy::new("requests", Quota::per_day(3))).store(patient(&server.url()))).await;
    let connects = || limiter.store().status().connects;
    let clients = || -> usize {
        let list: String = redis::cmd("CLIENT").arg("LIST").query(&mut server.connection()).unwrap();
        // Without the one that asks.
        list.lines().count() - 1
    };
    let (of_thread, ask) = (limiter.clone(), || limiter.check("a"));
    assert!(ask().await.unwrap().is_allowed());
    assert_eq!((connects(), clients()), (1, 1));
    let thread = std::thread::spawn(move || {
        assert!(!of_thread.store().connect_thread(), "there is no runtime");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            assert!(of_thread.store().connect_thread());
            assert!(of_thread.store().connect_thread(), "it has it already");
            up(&of_thread).await;
            let decision = of_thread.check("a").await.unwrap();
            assert_eq!((decision.is_allowed(), sources(&decision)), (true, vec![Source::Store]));
        });
        of_thread
    });
    let of_thread = tokio::task::spawn_blocking(|| thread.join().unwrap()).await.unwrap();
    assert_eq!(connects(), 2);
    // The others go on by the one that they share.
    assert!(of_thread.store().status().is_up);
    assert!(ask().await.unwrap().is_allowed());
    assert!(!ask().await.unwrap().is_allowed());
    assert_eq!(limiter.store().status().fallbacks, 0);
    while clients() > 1 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

//! A limiter that ends and begins again from a file answers as one that lived on. Two worlds take the same steps; one of them
//! is restarted now and then.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use proptest::{collection::vec, prelude::*};
use tempfile::TempDir;
use tidegate::{Algorithm, Clock, Hit, Limiter, ManualClock, Override, Policy, Quota, Receipt, Snapshot};

use crate::{
    traces::{Case, Mix, case, for_every_algorithm, property},
    world::{Answer, KEY, POLICY, Scene, Step, World, micros},
};

/// A place for files that are read back at once: where it can be had, one that is no disk.
pub(crate) fn folder() -> TempDir {
    TempDir::new_in("/dev/shm").or_else(|_| TempDir::new()).unwrap()
}

pub(crate) fn snapshot(folder: &TempDir) -> PathBuf {
    folder.path().join("snapshot")
}

/// A case, and before which of its steps there is a restart.
fn restarted(algorithm: Algorithm, mix: Mix) -> impl Strategy<Value = (Case, Vec<bool>)> {
    (case(algorithm, mix), vec(prop::bool::weighted(0.3), 40))
}

/// Takes each step in a world that lives on and in one that is restarted, and compares all that they answer.
fn lives_on((scene, steps): Case, restarts: &[bool], file: &Path) -> Result<(), TestCaseError> {
    let (mut lived, mut world) = (World::new(scene), World::kept(scene, file));
    let swings = steps.iter().any(|step| matches!(step, Step::Back(_)));
    for (index, (step, restart)) in steps.iter().zip(restarts).enumerate() {
        // What has expired is not saved, and may come back in a clock that does.
        if *restart && (!swings || lived.peek(0).reset > 0) {
            // With the quota that the other is about to get, if it is: to get it again changes nothing.
            let quota = if let Step::Configure(quota) = step { *quota } else { world.scene().quota };
            world.restart(quota, file);
            // Of those it cannot be told whether they were given out before the file was written.
            [&mut world, &mut lived].into_iter().for_each(World::lose_future_receipts);
        }
        prop_assert_eq!(world.take(*step), lived.take(*step), "step {} is {:?}", index, step);
        prop_assert_eq!(world.peek(1), lived.peek(1), "after step {}, {:?}", index, step);
        if lived.peek(0).reset > 0 {
            prop_assert_eq!(inspect(&world), inspect(&lived), "after step {}, {:?}", index, step);
        }
    }
    Ok(())
}

/// What is stored, in print.
fn inspect(world: &World) -> String {
    format!("{:?}", world.limiter.inspect(POLICY, KEY).unwrap())
}

fn restarts_change_nothing(mix: Mix) {
    let folder = folder();
    property(80, |algorithm| restarted(algorithm, mix), |(case, restarts)| lives_on(case, &restarts, &snapshot(&folder)));
}

#[test]
fn restart_changes_nothing() {
    restarts_change_nothing(Mix::FULL);
}

#[test]
fn restart_under_another_quota_is_a_reconfiguration() {
    restarts_change_nothing(Mix { configure: 3, ..Mix::FULL });
}

#[test]
fn restart_changes_nothing_when_the_clock_steps() {
    restarts_change_nothing(Mix { configure: 1, back: 2, ..Mix::FULL });
}

/// What happens to one of several keys.
#[derive(Clone, Copy, Debug)]
enum Event {
    Wait(u64),
    Check { key: usize, cost: u64 },
    Reset { key: usize },
    Refund(usize),
    Restart,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        2 => (0..4_000u64).prop_map(Event::Wait),
        8 => (0..6usize, 1..4u64).prop_map(|(key, cost)| Event::Check { key, cost }),
        1 => (0..6usize).prop_map(|key| Event::Reset { key }),
        2 => (0..30usize).prop_map(Event::Refund),
        2 => Just(Event::Restart),
    ]
}

/// Values that make keys of every kind: plain, empty, hostile, digested.
fn hit(key: usize) -> Hit<'static> {
    let long: &[u8] = &[b'x'; 100];
    let values: [(&[u8], &[u8]); 6] =
        [(b"a", b"1"), (b"gold", b""), (b"\0\xff\n", b"1"), (long, b"1"), (b"evil", long), (b"root", b"2")];
    Hit::new().attribute("user", values[key].0).attribute("ip", values[key].1)
}

fn policies(algorithm: Algorithm) -> [Policy; 3] {
    let quota = |limit| Quota::new(limit, Duration::from_millis(6)).unwrap();
    [
        Policy::new("user", quota(4))
            .key(["user"])
            .algorithm(algorithm)
            .override_key(["gold"], Override::Quota(quota(7)))
            .override_key(["evil"], Override::Blocked)
            .override_key(["root"], Override::Unlimited),
        Policy::new("both", quota(3)).key(["user", "ip"]).algorithm(algorithm),
        Policy::new("watched", quota(5)).key(["ip"]).shadow(),
    ]
}

#[test]
fn restart_keeps_every_policy_and_key() {
    let folder = folder();
    let strategy = |algorithm| (Just(algorithm), vec(event(), 1..60));
    property(100, strategy, |(algorithm, events)| {
        let clock = ManualClock::default();
        let builder = || Limiter::builder().policies(policies(algorithm)).clock(clock.clone());
        let kept = || builder().snapshot(Snapshot::new(snapshot(&folder))).build().unwrap();
        let _ = std::fs::remove_file(snapshot(&folder));
        let (lived, mut limiter) = (builder().build().unwrap(), kept());
        let mut receipts: Vec<[Receipt; 2]> = Vec::new();
        for event in events {
            let [expected, got] = match event {
                Event::Wait(wait) => {
                    clock.advance(Duration::from_micros(wait));
                    continue;
                }
                Event::Restart => {
                    drop(limiter);
                    limiter = kept();
                    continue;
                }
                Event::Check { key, cost } => [&lived, &limiter].map(|limiter| limiter.check_n(hit(key), cost)),
                Event::Reset { key } => [&lived, &limiter].map(|limiter| limiter.reset(hit(key))),
                Event::Refund(index) => {
                    let Some(pair) = receipts.get(index % receipts.len().max(1)) else { continue };
                    // Through text, as one receipt is refunded once.
                    let [ours, theirs] = [0, 1].map(|side| pair[side].to_string().parse::<Receipt>().unwrap());
                    [lived.refund(ours), limiter.refund(theirs)]
                }
            };
            let answers = |decision: &tidegate::Decision| decision.outcomes().map(Answer::from).collect::<Vec<_>>();
            prop_assert_eq!(answers(&got), answers(&expected), "{:?}", event);
            if let (Some(ours), Some(theirs)) = (expected.clone().take_receipt(), got.clone().take_receipt()) {
                receipts.push([ours, theirs]);
            }
        }
        Ok(())
    });
}

const DAILY: Quota = Quota::per_day(10);

/// What a limiter leaves in a file when it is dropped, after `steps`.
fn left_by(scene: Scene, steps: &[Step], file: &Path) -> World {
    let world = World::after(scene, steps);
    world.limiter.save(file).unwrap();
    world
}

fn build(clock: &ManualClock, file: &Path, policies: impl IntoIterator<Item = Policy>) -> Limiter {
    Limiter::builder().policies(policies).clock(clock.clone()).snapshot(Snapshot::new(file)).build().unwrap()
}

#[test]
fn daily_quota_survives_a_restart() {
    for_every_algorithm(|algorithm| {
        let (folder, clock) = (folder(), ManualClock::default());
        let policy = || Policy::new("daily", DAILY).algorithm(algorithm);
        for (turn, allowed) in [true, true, false].into_iter().enumerate() {
            let limiter = build(&clock, &snapshot(&folder), [policy()]);
            assert_eq!(limiter.check_n("a", 5).is_allowed(), allowed, "turn {turn}");
            clock.advance(Duration::from_secs(1));
        }
    });
}

#[test]
fn expired_states_are_neither_saved_nor_restored() {
    for_every_algorithm(|algorithm| {
        let folder = folder();
        let file = snapshot(&folder);
        let scene = Scene::new(algorithm, DAILY);
        let world = left_by(scene, &[Step::Check(10)], &file);
        let empty = World::new(scene).limiter.save(file.with_extension("empty")).unwrap();
        assert_eq!((world.limiter.save(&file).unwrap().keys, empty.keys), (1, 0));
        // An estimate takes two windows to fade.
        world.wait(2 * scene.window());
        let restored = build(&world.clock, &file, [scene.policy()]);
        assert_eq!((restored.usage()[0].keys, restored.remaining(KEY)), (0, Some(10)));
        assert_eq!(world.limiter.save(&file).unwrap().keys, 0);
    });
}

#[test]
fn another_algorithm_or_key_starts_afresh_and_a_policy_that_is_gone_is_dropped() {
    for_every_algorithm(|algorithm| {
        let folder = folder();
        let scene = Scene::new(algorithm, DAILY);
        let world = left_by(scene, &[Step::Check(10)], &snapshot(&folder));
        let other = if algorithm == Algorithm::Gcra { Algorithm::TokenBucket } else { Algorithm::Gcra };
        let afresh = [
            (Scene::new(other, DAILY).policy(), Hit::from(KEY)),
            (scene.policy().key(["user"]), Hit::new().attribute("user", KEY)),
            (scene.policy_named("other"), Hit::from(KEY)),
        ];
        for (policy, hit) in afresh {
            std::fs::copy(snapshot(&folder), folder.path().join("copy")).unwrap();
            let limiter = build(&world.clock, &folder.path().join("copy"), [policy]);
            assert_eq!(limiter.remaining(hit), Some(10));
            assert_eq!(limiter.usage().len(), 1);
        }
    });
}

#[test]
fn bound_holds_after_a_restart_and_keys_at_their_limit_stay_first() {
    for_every_algorithm(|algorithm| {
        let (folder, clock) = (folder(), ManualClock::default());
        let policy = || Policy::new("p", DAILY).algorithm(algorithm);
        let large = Limiter::builder().policy(policy()).clock(clock.clone()).build().unwrap();
        for number in 0..500 {
            let cost = if number % 50 == 0 { 10 } else { 1 };
            assert!(large.check_n(&number.to_string(), cost).is_allowed());
        }
        large.save(snapshot(&folder)).unwrap();
        let small = Limiter::builder().policy(policy()).clock(clock).max_keys(32);
        let small = small.snapshot(Snapshot::new(snapshot(&folder))).build().unwrap();
        assert_eq!(small.usage()[0].keys, 32);
        assert_eq!(small.store().snapshot_status().restored.unwrap().unwrap().keys, 32);
        for number in (0..500).step_by(50) {
            assert_eq!(small.remaining(&number.to_string()), Some(0), "{number}");
        }
    });
}

#[test]
fn what_keys_share_when_there_is_no_room_is_kept() {
    for_every_algorithm(|algorithm| {
        let (folder, clock) = (folder(), ManualClock::default());
        let builder = || {
            let policy = Policy::new("p", DAILY).algorithm(algorithm);
            Limiter::builder().policy(policy).clock(clock.clone()).max_keys(4)
        };
        let limiter = builder().build().unwrap();
        (0..4).for_each(|number| assert!(limiter.check_n(&number.to_string(), 10).is_allowed()));
        assert!(limiter.check_n("fresh", 7).is_allowed());
        limiter.save(snapshot(&folder)).unwrap();
        let restored = builder().snapshot(Snapshot::new(snapshot(&folder))).build().unwrap();
        assert_eq!(restored.remaining("another"), limiter.remaining("another"));
        assert_eq!(restored.remaining("another"), Some(3));
    });
}

#[test]
fn clock_that_was_set_back_meanwhile_gives_nothing_away() {
    for_every_algorithm(|algorithm| {
        let folder = folder();
        let scene = Scene::new(algorithm, DAILY);
        let world = left_by(scene, &[Step::Check(10)], &snapshot(&folder));
        let steps = [Duration::from_hours(1), Duration::from_hours(20)];
        for step in steps {
            world.clock.step_back(step);
            let restored = build(&world.clock, &snapshot(&folder), [scene.policy()]);
            assert_eq!(restored.peek(KEY).retry_after(), world.limiter.peek(KEY).retry_after(), "{step:?}");
            assert!(!restored.check(KEY).is_allowed());
        }
        // Years: nobody is locked out; and when the clock is right again, nothing was forgotten.
        let before = world.now();
        world.clock.set(before / 2);
        let restored = build(&world.clock, &snapshot(&folder), [scene.policy()]);
        assert!(restored.peek(KEY).is_allowed());
        world.clock.set(before);
        assert!(!restored.check(KEY).is_allowed());
    });
}

/// What is left of 10 when a limiter dies that has charged 4 and was saved, in either order, and the next one charges 5 and
/// is given the receipt for the 4.
fn left_after_a_crash(algorithm: Algorithm, charged: Duration, saved: Duration) -> Option<u64> {
    let (folder, clock) = (folder(), ManualClock::default());
    let file = snapshot(&folder);
    let policy = || Policy::new("p", DAILY).algorithm(algorithm);
    let first = Limiter::builder().policy(policy()).clock(clock.clone()).build().unwrap();
    let start = clock.epoch_micros();
    let charge = || {
        clock.set(start + micros(charged));
        first.check_n("a", 4).take_receipt()
    };
    let save = || {
        clock.set(start + micros(saved));
        first.save(&file).unwrap();
    };
    let receipt = if charged < saved {
        let receipt = charge();
        save();
        receipt
    } else {
        save();
        charge()
    };
    let second = build(&clock, &file, [policy()]);
    assert!(second.check_n("a", 5).is_allowed());
    second.refund(receipt.unwrap()).remaining()
}

#[test]
fn receipt_for_what_no_snapshot_holds_gives_nothing_back() {
    for_every_algorithm(|algorithm| {
        let [early, late, soon_after] = [1_000, 9_000, 9_500].map(Duration::from_millis);
        assert_eq!(left_after_a_crash(algorithm, early, late), Some(5), "charged before the save");
        assert_eq!(left_after_a_crash(algorithm, late, soon_after), Some(1), "perhaps counted only after it was made");
        assert_eq!(left_after_a_crash(algorithm, late, early), Some(5), "charged after it, so it is lost");
    });
}

#[test]
fn used_receipt_stays_used_and_a_reset_stays_one() {
    for_every_algorithm(|algorithm| {
        let folder = folder();
        let scene = Scene::new(algorithm, DAILY);
        let file = snapshot(&folder);
        let mut world = World::kept(scene, &file);
        world.run(&[Step::Check(2), Step::Check(2), Step::Refund(0), Step::Wait(1)]);
        world.restart(DAILY, &file);
        let used = world.peek(0).used;
        world.take(Step::Refund(0));
        assert_eq!(world.peek(0).used, used, "used before");
        world.take(Step::Reset);
        world.take(Step::Wait(1));
        world.take(Step::Check(3));
        world.restart(DAILY, &file);
        world.take(Step::Refund(1));
        assert_eq!(world.peek(0).used, 3, "given out before the reset");
    });
}

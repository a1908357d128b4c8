//! The storm: 32 connections between two hosts over a network that loses, duplicates and reorders, each with ten messages
//! each way and one migration of each end, and one of the listener. Whatever happens, both ends agree or both have given up
//! by the deadline, and nothing is left behind.
//!
//! The host is the dispatcher, driven in bytes; the queue pairs are the RC engine; time is virtual. `OARLOCK_SEEDS=N` runs
//! more seeds, `OARLOCK_SEED=N` one of them; a failing one is printed.

mod program;
mod qp;
mod world;

use std::io::Write as _;

use oarlock_sim::{for_each_seed, seeds};

use world::{Fault, Outcome, World, Wrong};

/// Loss by seed: each rate has a quarter of the seeds.
const LOSS: [f64; 4] = [0.0, 0.01, 0.05, 0.20];
const CONNECTIONS: usize = 32;
/// So many failing seeds are enough to see what is wrong.
const ENOUGH: usize = 10;

fn loss(seed: u64) -> f64 {
    LOSS[(seed % 4) as usize]
}

fn storm(seed: u64, fault: Fault) -> Result<Outcome, Wrong> {
    World::new(seed, loss(seed), CONNECTIONS, fault).run()
}

/// R-MIG-1, R-MIG-2, R-MIG-4, R-MIG-5, R-MIG-7, R-MIG-9, R-ADDR-2 under fire.
#[test]
fn both_sides_agree_or_both_have_given_up_and_nothing_leaks() {
    let mut total = [Outcome::default(); 4];
    let (mut disagreements, mut leaks) = (0, 0);
    let seeds = seeds(300);
    assert!(
        !seeds.is_empty(),
        "no seeds to run: nothing would be tested"
    );
    for &seed in &seeds {
        match storm(seed, Fault::None) {
            Ok(outcome) => total[(seed % 4) as usize].add(&outcome),
            Err(wrong) => {
                match wrong {
                    Wrong::Disagreement(_) => disagreements += 1,
                    Wrong::Leak(_) => leaks += 1,
                }
                // Past the test harness, so that a passing run's output is not needed to see it.
                let line = format!(
                    "failing seed: reproduce with OARLOCK_SEED={seed} (loss {}): {wrong}\n",
                    loss(seed)
                );
                std::io::stderr()
                    .write_all(line.as_bytes())
                    .expect("standard error is open");
            }
        }
        if disagreements + leaks >= ENOUGH {
            break;
        }
    }
    let mut all = Outcome::default();
    total.iter().for_each(|outcome| all.add(outcome));
    println!();
    for (outcome, loss) in total
        .iter()
        .zip(LOSS)
        .filter(|(outcome, _)| outcome.connections > 0)
    {
        println!("loss {loss}: {outcome:?}");
    }
    println!(
        "storm: seeds={} connections={} completed={} messages={} migrations={} moved_events={} disagreements={disagreements} leaks={leaks}",
        seeds.len(),
        all.connections,
        all.completed,
        all.messages,
        all.migrations,
        all.moved_events
    );
    assert!(
        disagreements == 0 && leaks == 0,
        "{disagreements} disagreements, {leaks} leaks"
    );
    assert_eq!(
        total[0].completed, total[0].connections,
        "nothing is lost without loss"
    );
    for (outcome, loss) in total
        .iter()
        .zip(LOSS)
        .filter(|(outcome, _)| outcome.connections > 0)
    {
        // A storm in which everybody gives up would agree too.
        assert!(
            outcome.completed * 10 >= outcome.connections * 9,
            "loss {loss}: {outcome:?}"
        );
    }
    assert!(
        all.moved_events > 0 || seeds.len() < 20,
        "no event ever waited when its identifier moved"
    );
}

/// A network that breaks for a while or for good: both ends of every connection know by the deadline that it is over.
#[test]
fn when_the_network_breaks_both_sides_give_up() {
    let mut total = Outcome::default();
    for_each_seed(60, |seed| {
        let loss = loss(seed);
        let world = World::new(seed, loss, CONNECTIONS, Fault::None).breaking();
        let outcome = world
            .run()
            .unwrap_or_else(|what| panic!("seed {seed}, loss {loss}: {what}"));
        total.add(&outcome);
    });
    println!("with a network that breaks: {total:?}");
    // Of one seed alone everything or nothing may get through.
    let enough = total.connections >= 20 * CONNECTIONS;
    let mixed = total.completed > 0 && total.completed < total.connections;
    assert!(mixed || !enough, "{total:?}");
}

/// A test of the judge: each planted fault must turn it red.
#[test]
fn the_judge_sees_planted_faults() {
    for fault in [
        Fault::MigratedEventsAreLost,
        Fault::MigratedEventsWakeNobody,
        Fault::OneByteIsFlipped,
        Fault::OneIdentifierIsForgotten,
    ] {
        let wrong: Vec<Wrong> = (0..20)
            .filter_map(|seed| storm(seed, fault).err())
            .collect();
        assert!(!wrong.is_empty(), "{fault:?} went unseen");
        let is_leak = |wrong: &Wrong| matches!(wrong, Wrong::Leak(_));
        assert_eq!(
            wrong.iter().any(is_leak),
            fault == Fault::OneIdentifierIsForgotten,
            "{fault:?}: {wrong:?}"
        );
    }
}

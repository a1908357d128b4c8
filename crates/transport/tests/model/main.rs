//! Random lists of operations on both sides of a pair, over a network with faults, against a reference model of memory and
//! completions.
//!
//! RC, XRC, UC and UD, with receive queues of their own and shared ones: every operation, signalled or not, inline or gathered,
//! fenced, solicited; keys, ranges, rights and buffers wrong at random; windows bound and invalidated; PSNs around their wrap;
//! every path MTU; READ windows and limits; credits; loss, repetition, reordering, damage; receivers that are not ready; queue
//! pairs drained, failed, reset and connected again. Judged by content: all memory of both sides byte for byte, and every field of
//! every completion. The memory that the queue pairs work on is written from the specification, not the device's.
//!
//! `OARLOCK_SEEDS=N` runs N seeds, `OARLOCK_SEED=N` one; a seed that fails is printed. Each run prints what it has seen, and a run of
//! all default seeds fails if it has not seen everything there is. That the judge finds faults is shown by planting some.

mod cut;
mod director;
mod engine;
mod judge;
mod memory;
mod plan;
mod tally;
mod unreliable;
mod world;

use oarlock_sim::{Rng, for_each_seed};

use engine::engines;
use memory::Plant;
use plan::{Kind, Setup};
use tally::Tally;
use world::{Verdict, World};

/// Lives of one pair.
const LIVES: usize = 12;

/// Runs one seed: a pair that is connected, lives, fails or not, and is connected again.
fn run(seed: u64, plant: Option<Plant>, tally: &mut Tally) -> Verdict {
    let mut rng = Rng::new(seed);
    let kind = Kind::ALL[(seed % Kind::ALL.len() as u64) as usize];
    let first = Setup::random(&mut rng, kind);
    let mut queue_pairs = engines(&mut rng, kind, &first);
    for life in 0..LIVES {
        let mut setup = Setup::random(&mut rng, kind);
        if kind.is_ud() {
            // What the port carries does not change.
            setup.mtu = first.mtu;
        }
        let mut world = World::new(setup, queue_pairs, &mut rng, plant, tally);
        let verdict = world.run().and_then(|()| judge::judge(&mut world));
        verdict.map_err(|wrong| {
            let setup = &world.setup;
            format!("seed {seed}, life {life}, {kind:?}: {wrong}\n{setup:?}")
        })?;
        queue_pairs = world.into_engines();
    }
    Ok(())
}

/// Issue 4: random operation lists on both sides agree with a reference model of memory and completions, by content.
#[test]
fn random_operations_agree_with_the_reference() {
    let mut tally = Tally::default();
    let mut count = 0;
    for_each_seed(300, |seed| {
        count += 1;
        if let Err(wrong) = run(seed, None, &mut tally) {
            panic!("{wrong}");
        }
    });
    println!("{count} seeds\n{tally}");
    // Fewer seeds show less.
    if count >= 300 {
        assert_eq!(tally.missing(), [""; 0], "never seen");
    }
}

/// A judge that finds nothing is worth nothing.
#[test]
fn every_planted_fault_is_found() {
    for plant in Plant::ALL {
        let found = (0..400).find_map(|seed| {
            let verdict = run(seed, Some(plant), &mut Tally::default());
            verdict.err().map(|wrong| (seed, wrong))
        });
        let (seed, wrong) = found.unwrap_or_else(|| panic!("{plant:?} is never found"));
        let line = wrong.lines().next().unwrap_or_default();
        println!("{plant:?}: seed {seed}: {line:.160}");
    }
}

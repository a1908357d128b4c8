//! The storm: 32 connections between two hosts over a network that loses, duplicates and reorders, each with ten messages
//! each way and one migration of each end, and one of the listener. Whatever happens, both ends agree or both have given up
//! by the deadline, and nothing is left behind.
//!
//! The host is the dispatcher, driven in bytes; the queue pairs are the RC engine; time is virtual. `OARLOCK_SEEDS=N` runs
//! more seeds, `OARLOCK_SEED=N` one of them; a failing one is printed.

mod program;
mod qp;
mod world;

use oarlock_sim::for_each_seed;

use world::{Fault, Outcome, World};

/// Loss by seed: each rate has a quarter of the seeds.
const LOSS: [f64; 4] = [0.0, 0.01, 0.05, 0.20];
const CONNECTIONS: usize = 32;

fn storm(seed: u64, fault: Fault) -> Result<Outcome, String> {
    let loss = LOSS[(seed % 4) as usize];
    World::new(seed, loss, CONNECTIONS, fault).run()
}

/// R-MIG-1, R-MIG-2, R-MIG-4, R-MIG-5, R-MIG-7, R-MIG-9, R-ADDR-2 under fire.
#[test]
fn both_sides_agree_or_both_have_given_up_and_nothing_leaks() {
    let mut total = [Outcome::default(); 4];
    for_each_seed(300, |seed| match storm(seed, Fault::None) {
        Ok(outcome) => {
            if seed % 4 == 0 {
                assert_eq!(
                    outcome.completed, CONNECTIONS,
                    "nothing is lost on this network"
                );
            }
            total[(seed % 4) as usize].add(&outcome);
        }
        Err(what) => panic!("seed {seed}, loss {}: {what}", LOSS[(seed % 4) as usize]),
    });
    for (outcome, loss) in total
        .iter()
        .zip(LOSS)
        .filter(|(outcome, _)| outcome.connections > 0)
    {
        println!("loss {loss}: {outcome:?}");
        // A storm in which everybody gives up would agree too.
        assert!(
            outcome.completed * 10 >= outcome.connections * 9,
            "loss {loss}: {outcome:?}"
        );
        assert!(
            outcome.moved_events > 0,
            "loss {loss}: no event was ever in the queue when its identifier moved"
        );
    }
}

/// A network that breaks for a while or for good: both ends of every connection know by the deadline that it is over.
#[test]
fn when_the_network_breaks_both_sides_give_up() {
    let mut total = Outcome::default();
    for_each_seed(60, |seed| {
        let loss = LOSS[(seed % 4) as usize];
        let world = World::new(seed, loss, CONNECTIONS, Fault::None).breaking();
        let outcome = world
            .run()
            .unwrap_or_else(|what| panic!("seed {seed}, loss {loss}: {what}"));
        total.add(&outcome);
    });
    println!("{total:?}");
    assert!(
        total.completed > 0 && total.completed < total.connections,
        "{total:?}"
    );
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
        let red = (0..20).filter(|&seed| storm(seed, fault).is_err()).count();
        assert!(red > 0, "{fault:?} went unseen");
    }
}

use super::*;

struct Bench {
    table: Table,
    generation: Generation,
    marks: Marks,
}

impl Bench {
    fn new() -> Self {
        let marks = Marks::new(4096).expect("memory");
        Self {
            table: Table::new(marks.clone()),
            generation: Generation::new().expect("a page"),
            marks,
        }
    }

    fn change(&mut self, kind: Kind, range: Range<usize>) {
        self.table.apply(&Change { kind, range }, &self.generation);
    }

    fn cookies(&mut self) -> Vec<u64> {
        let mut cookies = Vec::new();
        while let Some(event) = self.table.next_event() {
            cookies.push(event.cookie);
        }
        cookies
    }
}

#[test]
fn a_change_reaches_every_region_that_it_overlaps_and_no_other() {
    let mut bench = Bench::new();
    let regions = [
        0x1000..0x2000,
        0x1000..0x9000,
        0x2000..0x2001,
        0x3000..0x4000,
        0x1fff..0x2000,
    ];
    for (cookie, range) in regions.iter().enumerate() {
        bench
            .table
            .insert(range.clone(), cookie as u64, Policy::Report);
    }
    bench.change(Kind::Unmapped, 0x2000..0x3000);
    let mut cookies = bench.cookies();
    cookies.sort_unstable();
    assert_eq!(cookies, [1, 2]);
    bench.change(Kind::Unmapped, 0x2500..0x2500);
    bench.change(Kind::Unmapped, 0x9000..0x9000);
    assert_eq!(bench.cookies(), []);
}

/// The index against the plain question, for lengths from bytes to gigabytes.
#[test]
fn the_index_finds_what_a_search_of_all_finds() {
    let mut rng = oarlock_sim::Rng::new(7);
    let mut next = |bound: u64| rng.below(bound);
    let mut bench = Bench::new();
    let mut regions: Vec<(u64, u32, Range<usize>)> = Vec::new();
    for cookie in 0..20_000u64 {
        let start = next(1 << 34) as usize;
        let longest = 1 << next(31);
        let len = 1 + next(longest) as usize;
        match next(3) {
            0 if !regions.is_empty() => {
                let (_, slot, _) = regions.swap_remove(next(regions.len() as u64) as usize);
                bench.table.remove(slot);
            }
            1 | 0 if regions.len() < 4000 => {
                let range = start..start + len;
                let (slot, _) = bench.table.insert(range.clone(), cookie, Policy::Report);
                regions.push((cookie, slot, range));
            }
            _ => {
                let range = start..start + len;
                bench.change(Kind::Discarded, range.clone());
                let mut found = bench.cookies();
                let mut expected: Vec<_> = regions
                    .iter()
                    .filter(|(_, _, region)| overlap(region, &range).is_some())
                    .map(|(cookie, ..)| *cookie)
                    .collect();
                found.sort_unstable();
                expected.sort_unstable();
                assert_eq!(found, expected, "change {range:#x?}");
                assert_eq!(bench.table.overlapping(&range).len(), expected.len());
            }
        }
    }
    assert_eq!(bench.table.live(), regions.len());
}

/// R-MEM-1: at most one unread event per cookie; what comes meanwhile joins it.
#[test]
fn changes_join_the_unread_event_with_an_exact_hint_or_none() {
    let mut bench = Bench::new();
    bench.table.insert(0x1000..0x9000, 1, Policy::Report);
    bench.change(Kind::Discarded, 0x0..0x2000);
    bench.change(Kind::Unmapped, 0x2000..0x3000);
    bench.change(Kind::Discarded, 0x1000..0x1800);
    let event = bench.table.next_event().expect("one event");
    assert_eq!(
        (event.kind, event.hint),
        (Kind::Unmapped, Some(0x1000..0x3000))
    );
    assert!(bench.table.next_event().is_none());

    bench.change(Kind::Discarded, 0x1000..0x2000);
    bench.change(Kind::Discarded, 0x4000..0x5000);
    bench.change(Kind::Discarded, 0x2000..0x4000);
    let event = bench.table.next_event().expect("a new event");
    assert_eq!((event.kind, event.hint), (Kind::Discarded, None));
    assert_eq!(bench.table.counts().joined, 4);
    assert_eq!(bench.table.remove(0).report.reported, 2);
}

/// R-MEM-3: the counter grows with every queued event, and only then.
#[test]
fn the_generation_grows_with_each_queued_event() {
    let mut bench = Bench::new();
    bench.table.insert(0x1000..0x2000, 1, Policy::Report);
    bench.table.insert(0x1000..0x2000, 2, Policy::Deregister);
    assert_eq!(bench.generation.get(), 0);
    bench.change(Kind::Unmapped, 0x5000..0x6000);
    assert_eq!(bench.generation.get(), 0);
    bench.change(Kind::Unmapped, 0x1000..0x2000);
    assert_eq!(bench.generation.get(), 2);
    bench.change(Kind::Unmapped, 0x1000..0x2000);
    assert_eq!(bench.generation.get(), 2, "joined, and ended before");
    assert_eq!(bench.cookies(), [1]);
    bench.change(Kind::Unmapped, 0x1000..0x2000);
    assert_eq!(bench.generation.get(), 3);
}

/// R-MEM-1: no event after deregistration.
#[test]
fn removal_drops_the_unread_event_from_anywhere_in_the_queue() {
    for gone in 0..3u64 {
        let mut bench = Bench::new();
        for cookie in 0..3 {
            bench.table.insert(0x1000..0x2000, cookie, Policy::Report);
        }
        bench.change(Kind::Moved, 0x1000..0x2000);
        let slot = bench.table.find(gone).expect("live");
        let removed = bench.table.remove(slot);
        assert_eq!(
            removed.report.unread.map(|event| event.kind),
            Some(Kind::Moved)
        );
        assert_eq!(removed.report.reported, 0);
        let rest: Vec<_> = (0..3).filter(|cookie| *cookie != gone).collect();
        assert_eq!(bench.cookies(), rest);
        bench.change(Kind::Moved, 0x1000..0x2000);
        assert_eq!(bench.cookies(), rest);
        assert!(!bench.table.has_unread());
    }
}

/// R-MEM-4: the mode for users who do not read.
#[test]
fn a_region_with_the_policy_ends_by_itself_and_frees_its_cookie() {
    let mut bench = Bench::new();
    let (slot, serial) = bench.table.insert(0x1000..0x2000, 5, Policy::Deregister);
    assert!(bench.marks.is_set(slot, serial));
    bench.change(Kind::Discarded, 0x1800..0x1801);
    assert!(!bench.marks.is_set(slot, serial));
    assert!(bench.table.find(5).is_none() && !bench.table.is_current(slot, serial));
    assert_eq!((bench.table.live(), bench.table.has_unread()), (0, false));
    let removed = bench.table.remove_ended().expect("to be swept");
    assert_eq!((removed.report.cookie, removed.gone), (5, None));
    assert!(bench.table.remove_ended().is_none());
    let (again, newer) = bench.table.insert(0x1000..0x2000, 5, Policy::Report);
    assert_eq!(again, slot);
    assert!(bench.marks.is_set(slot, newer) && !bench.marks.is_set(slot, serial));
}

#[test]
fn what_is_not_known_concerns_every_region() {
    let mut bench = Bench::new();
    bench.table.insert(0x1000..0x2000, 1, Policy::Report);
    bench.table.insert(0x7000..0x8000, 2, Policy::Deregister);
    bench.table.apply_unknown(&bench.generation);
    let event = bench.table.next_event().expect("an event");
    assert_eq!(
        (event.cookie, event.kind, event.hint),
        (1, Kind::Unknown, None)
    );
    assert_eq!(bench.table.live(), 1);
    assert!((0..2).all(|slot| (1..3).all(|serial| !bench.marks.is_set(slot, serial))));
}

/// R-MEM-4: one call for all that were notified, read or not.
#[test]
fn notified_regions_are_removed_and_others_stay() {
    let mut bench = Bench::new();
    for cookie in 0..4u64 {
        let start = 0x1000 * (1 + cookie as usize);
        bench
            .table
            .insert(start..start + 0x1000, cookie, Policy::Report);
    }
    bench.change(Kind::Unmapped, 0x1000..0x2000);
    assert_eq!(bench.cookies(), [0]);
    bench.change(Kind::Discarded, 0x3000..0x4000);
    let mut next = 0;
    let removed: Vec<_> = std::iter::from_fn(|| bench.table.remove_notified(&mut next))
        .map(|removed| {
            (
                removed.report.cookie,
                removed.report.reported,
                removed.report.unread.is_some(),
            )
        })
        .collect();
    assert_eq!(removed, [(0, 1, false), (2, 0, true)]);
    assert_eq!(bench.table.live(), 2);
}

#[test]
fn the_largest_lengths_have_a_class() {
    let mut bench = Bench::new();
    bench.table.insert(1..usize::MAX, 1, Policy::Report);
    bench.change(Kind::Unmapped, usize::MAX - 2..usize::MAX - 1);
    assert_eq!(bench.cookies(), [1]);
}

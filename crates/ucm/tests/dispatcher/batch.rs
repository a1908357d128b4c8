//! Batches: one message, several requests.

use oarlock_ucm::abi::qp_state;
use oarlock_ucm::client::{self, IdNumber};
use oarlock_ucm::proto::{Acknowledged, WriteBatch, WriteItem, WriteReply};
use oarlock_ucm::{FileId, Owner};

use crate::world::{PORT, TCP, World, address};

fn item<A: client::Answer>(file: FileId, call: client::Call<A>, id_from: Option<u8>) -> WriteItem {
    let (request, inline) = call.into_parts();
    WriteItem {
        channel: file.0,
        request,
        inline,
        id_from,
    }
}

fn errnos(replies: &[WriteReply]) -> Vec<i32> {
    replies.iter().map(|reply| reply.errno).collect()
}

/// One message makes an identifier, sets an option and resolves, though its number is not known beforehand.
#[test]
fn later_requests_mean_the_identifier_that_an_earlier_one_makes() {
    let mut w = World::new(2);
    let file = w.open(0);
    w.create(0, file, 1);
    let anybody = IdNumber(0xDEAD);
    let batch = WriteBatch {
        stop_on_error: true,
        items: vec![
            item(file, client::create_id(2, TCP, 0), None),
            item(file, client::set_tos(anybody, 8), Some(0)),
            item(
                file,
                client::bind(anybody, (address(0), PORT).into()),
                Some(0),
            ),
            item(file, client::listen(anybody, 1), Some(0)),
            item(file, client::query_addr(anybody), Some(0)),
        ],
        acknowledged: vec![],
    };
    let now = w.now;
    let replies = w.hosts[0].write_batch(now, Owner(1), batch);
    assert_eq!(errnos(&replies), [0; 5]);
    assert_eq!(
        client::create_id(0, TCP, 0).decode(&replies[0].response),
        Ok(IdNumber(1))
    );
    let addresses = client::query_addr(anybody)
        .decode(&replies[4].response)
        .expect("addresses");
    assert_eq!(addresses.local, Some((address(0), PORT).into()));
}

/// One message takes an event and asks for what is known with it; other events name nothing.
#[test]
fn later_requests_mean_the_identifier_that_an_event_is_about() {
    let mut w = World::new(2);
    let file = w.open(0);
    w.create(0, file, 1);
    let id = w.create(0, file, 2);
    let to = (address(1), PORT).into();
    w.ok(0, file, &client::resolve_addr(id, None, to, 1000));
    let anybody = IdNumber(0xDEAD);
    let fetch = || WriteBatch {
        stop_on_error: false,
        items: vec![
            item(file, client::get_event(), None),
            item(file, client::query_addr(anybody), Some(0)),
            item(file, client::init_qp_attr(anybody, qp_state::INIT), Some(0)),
            item(file, client::init_qp_attr(anybody, qp_state::RTR), Some(0)),
        ],
        acknowledged: vec![],
    };
    let now = w.now;
    let replies = w.hosts[0].write_batch(now, Owner(1), fetch());
    assert_eq!(errnos(&replies), [0, 0, 0, 22]);
    let addresses = client::query_addr(anybody)
        .decode(&replies[1].response)
        .expect("addresses");
    assert_eq!(addresses.remote, Some(to));
    w.ok(0, file, &client::resolve_route(id, 1000));
    let replies = w.hosts[0].write_batch(now, Owner(1), fetch());
    assert_eq!(errnos(&replies), [0, 22, 22, 22]);
    assert_eq!(
        replies[1].sentence,
        "request 0 of the batch named no identifier for this one"
    );
    // An empty channel.
    let replies = w.hosts[0].write_batch(now, Owner(1), fetch());
    assert_eq!(errnos(&replies), [11, 22, 22, 22]);
}

#[test]
fn a_failure_ends_the_batch_where_that_is_asked_for() {
    let mut w = World::new(1);
    let file = w.open(0);
    let items = || {
        vec![
            item(file, client::create_id(1, 0x9999, 0), None),
            item(file, client::listen(IdNumber(0), 1), Some(0)),
            item(file, client::create_id(2, TCP, 0), None),
        ]
    };
    let now = w.now;
    let stopped = WriteBatch {
        stop_on_error: true,
        items: items(),
        acknowledged: vec![],
    };
    let replies = w.hosts[0].write_batch(now, Owner(1), stopped);
    assert_eq!(errnos(&replies), [22, 125, 125]);
    assert_eq!(
        replies[2].sentence,
        "not tried: request 0 of the batch failed"
    );
    let all = WriteBatch {
        stop_on_error: false,
        items: items(),
        acknowledged: vec![],
    };
    let replies = w.hosts[0].write_batch(now, Owner(1), all);
    assert_eq!(errnos(&replies), [22, 22, 0]);
    assert_eq!(
        replies[1].sentence,
        "request 0 of the batch named no identifier for this one"
    );
}

#[test]
fn the_channels_of_other_programs_are_out_of_reach() {
    let mut w = World::new(1);
    let mine = w.open(0);
    let theirs = w.hosts[0].open(Owner(2)).expect("room");
    let id = w.create(0, theirs, 1);
    let batch = WriteBatch {
        items: vec![
            item(theirs, client::get_event(), None),
            item(FileId(u64::MAX), client::get_event(), None),
            item(mine, client::destroy_id(id), None),
        ],
        acknowledged: vec![
            Acknowledged {
                id: id.0,
                events: 77,
            },
            Acknowledged { id: 99, events: 1 },
        ],
        ..WriteBatch::default()
    };
    let now = w.now;
    let replies = w.hosts[0].write_batch(now, Owner(1), batch);
    assert_eq!(errnos(&replies), [9, 9, 22]);
    assert_eq!(w.hosts[0].ids(), 1);
}

/// Draining a channel takes one round trip, and what was acknowledged is noted on the way.
#[test]
fn a_channel_is_drained_by_one_batch() {
    let mut w = World::new(2);
    let file = w.open(0);
    let ids: Vec<IdNumber> = (0..3).map(|uid| w.create(0, file, uid)).collect();
    for &id in &ids {
        w.ok(
            0,
            file,
            &client::resolve_addr(id, None, (address(1), PORT).into(), 1000),
        );
    }
    let batch = WriteBatch {
        stop_on_error: true,
        items: vec![item(file, client::get_event(), None); 8],
        acknowledged: vec![],
    };
    let now = w.now;
    let replies = w.hosts[0].write_batch(now, Owner(1), batch);
    assert_eq!(errnos(&replies), [0, 0, 0, 11, 125, 125, 125, 125]);
    let unacked = |w: &World| {
        w.hosts[0]
            .id_infos(None, |_| 0)
            .map(|info| info.unacked)
            .collect::<Vec<_>>()
    };
    assert_eq!(unacked(&w), [1, 1, 1]);
    let note = WriteBatch {
        acknowledged: vec![Acknowledged {
            id: ids[1].0,
            events: 1,
        }],
        ..WriteBatch::default()
    };
    assert!(w.hosts[0].write_batch(now, Owner(1), note).is_empty());
    assert_eq!(unacked(&w), [1, 0, 1]);
}

#[test]
fn an_answer_never_outgrows_the_message() {
    let mut w = World::new(1);
    let file = w.open(0);
    let id = w.create(0, file, 1);
    let mut call = item(file, client::query_addr(id), None);
    call.request[6..8].copy_from_slice(&u16::MAX.to_ne_bytes());
    let now = w.now;
    let batch = WriteBatch {
        items: vec![call],
        ..WriteBatch::default()
    };
    let replies = w.hosts[0].write_batch(now, Owner(1), batch);
    assert_eq!(replies[0].response.len(), 280);
}

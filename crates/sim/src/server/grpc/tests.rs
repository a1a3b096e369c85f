//! Counting agrees with decoding.

use googleapis_tonic_google_bigtable_v2::google::bigtable::v2 as pb;

use super::*;
use crate::bigtable::chunks::frame;

fn request(entries: usize) -> Bytes {
    let entry = |index: usize| pb::mutate_rows_request::Entry {
        row_key: vec![b'k'; index + 1].into(),
        ..Default::default()
    };
    frame(&pb::MutateRowsRequest {
        table_name: "projects/p/instances/i/tables/t".into(),
        app_profile_id: "profile".into(),
        entries: (0..entries).map(entry).collect(),
        ..Default::default()
    })
}

#[test]
fn entries_are_counted_in_pieces_of_any_size() {
    let whole = request(300);
    for piece in [1, 2, 7, 16_384] {
        let mut counter = EntryCounter::new();
        whole
            .chunks(piece)
            .for_each(|piece| counter.feed(piece).expect("well-formed"));
        assert_eq!(
            counter.finish(),
            Ok((300, whole.len() as u64 - 5)),
            "pieces of {piece}"
        );
    }
}

#[test]
fn a_truncated_or_foreign_message_is_malformed() {
    let whole = request(3);
    let mut counter = EntryCounter::new();
    counter
        .feed(&whole[..whole.len() - 1])
        .expect("so far well-formed");
    assert_eq!(counter.finish(), Err(Malformed));
    assert_eq!(
        EntryCounter::new().feed(&[1, 0, 0, 0, 0]),
        Err(Malformed),
        "compressed"
    );
    assert_eq!(
        EntryCounter::new().feed(&[0, 0, 0, 0, 1, 0x0b]),
        Err(Malformed),
        "a group"
    );
    let mut endless = EntryCounter::new();
    assert_eq!(endless.feed(&[0, 0, 0, 0, 11]), Ok(()));
    assert_eq!(endless.feed(&[0xff; 11]), Err(Malformed));
}

#[test]
fn the_table_name_is_read_from_the_first_data() {
    assert_eq!(
        table_name(&request(1)),
        Some("projects/p/instances/i/tables/t")
    );
    assert_eq!(table_name(&request(1)[..20]), None, "cut within the name");
    assert_eq!(table_name(&[]), None);
    let long = "t".repeat(200);
    let request = frame(&pb::MutateRowsRequest {
        table_name: long.clone(),
        ..Default::default()
    });
    assert_eq!(table_name(&request), Some(&*long));
}

#[test]
fn foreign_bytes_are_refused_or_counted_and_never_panic() {
    let mut rng = fastrand::Rng::with_seed(1);
    let whole = request(5);
    for _ in 0..20_000 {
        let mut bytes = whole.to_vec();
        for _ in 0..rng.usize(1..4) {
            let at = rng.usize(0..bytes.len());
            bytes[at] = rng.u8(..);
        }
        bytes.truncate(rng.usize(0..=bytes.len()));
        let _ = table_name(&bytes);
        let mut counter = EntryCounter::new();
        if counter.feed(&bytes).is_ok()
            && let Ok((entries, _)) = counter.finish()
        {
            assert!(
                entries <= bytes.len() / 2,
                "an entry takes at least two bytes"
            );
        }
    }
}

//! What a batch must be.

use crate::common::{VOCABULARY, batch, params};
use graph::{Batch, BatchError, GraphParams};

type Change = fn(&mut Batch);

/// Two sequences: 2 tokens at positions 5 and 6, in pages 3 and 1, and 1 token at position 0, in page 7.
fn ragged() -> (GraphParams, Batch) {
    let params = GraphParams { sequences: 2, max_pages: 2, outputs: 2, ..params(3) };
    let batch = Batch {
        tokens: vec![1, 2, 15],
        positions: vec![5, 6, 0],
        cache_rows: vec![vec![5, 6, 28]],
        query_ranges: vec![0, 2, 3],
        kv_lens: vec![7, 1],
        page_tables: vec![vec![3, 1, 7, -1]],
        out_rows: vec![1, 2],
    };
    (params, batch)
}

/// The error after a change.
fn broken(change: impl FnOnce(&mut Batch)) -> BatchError {
    let (params, mut batch) = ragged();
    change(&mut batch);
    batch.validate(&params, VOCABULARY).unwrap_err()
}

#[test]
fn ragged_batches_single_tokens_and_empty_batches_are_valid() {
    let (params, batch) = ragged();
    assert_eq!(batch.validate(&params, VOCABULARY), Ok(()));
    for (tokens, start) in [(1, 0), (1, 15), (16, 0), (3, 4)] {
        let params = crate::common::params(tokens);
        assert_eq!(crate::common::batch(&params, start).validate(&params, VOCABULARY), Ok(()));
    }
    let nothing = GraphParams { sequences: 0, ..crate::common::params(0) };
    let empty = Batch {
        query_ranges: vec![0],
        cache_rows: vec![vec![]],
        page_tables: vec![vec![]],
        ..Batch::default()
    };
    assert_eq!(empty.validate(&nothing, VOCABULARY), Ok(()));
    // A sequence without rows in this batch.
    let idle = GraphParams { sequences: 1, ..crate::common::params(0) };
    assert_eq!(crate::common::batch(&idle, 7).validate(&idle, VOCABULARY), Ok(()));
}

#[test]
fn every_list_has_the_length_that_the_parameters_say() {
    let changes: [(&str, Change); 9] = [
        ("tokens", |b| b.tokens.truncate(2)),
        ("positions", |b| b.positions.push(0)),
        ("cache rows' groups", |b| b.cache_rows.clear()),
        ("page tables' groups", |b| b.page_tables.push(vec![])),
        ("query ranges", |b| b.query_ranges.clear()),
        ("KV lengths", |b| b.kv_lens.push(1)),
        ("output rows", |b| b.out_rows.truncate(1)),
        ("cache rows", |b| b.cache_rows[0].truncate(2)),
        ("page table", |b| b.page_tables[0].truncate(3)),
    ];
    for (name, change) in changes {
        let error = broken(change);
        assert!(matches!(&error, BatchError::Length { what, .. } if what == name), "{name}: {error:?}");
    }
    let error = broken(|b| b.tokens.truncate(2));
    assert_eq!(error, BatchError::Length { what: "tokens".into(), expected: 3, found: 2 });
    assert_eq!(error.to_string(), "batch: tokens: expected 3 entries, found 2");
}

#[test]
fn every_value_is_in_its_range() {
    type Set = fn(&mut Batch, i32);
    let lists: [(&str, Set, i64, i64); 4] = [
        ("tokens", |b, v| b.tokens[2] = v, 0, 16),
        ("output rows", |b, v| b.out_rows[1] = v, 0, 3),
        ("cache rows", |b, v| b.cache_rows[0][1] = v, 0, 32),
        ("page table", |b, v| b.page_tables[0][3] = v, -1, 8),
    ];
    for (name, change, least, limit) in lists {
        for value in [least - 1, limit, i64::from(i32::MIN), i64::from(i32::MAX)] {
            let error = broken(|b| change(b, value as i32));
            let found = match &error {
                BatchError::Range { what, found, least: l, limit: u, .. } => (what.as_str(), *found, *l, *u),
                other => panic!("{name}: {other:?}"),
            };
            assert_eq!(found, (name, value, least, limit));
        }
    }
    let error = broken(|b| b.page_tables[0][3] = 8);
    assert_eq!(error.to_string(), "batch: page table[3]: expected -1..8, found 8");
}

#[test]
fn query_ranges_rise_from_zero_to_the_number_of_tokens() {
    for ranges in [[0, 4, 3], [0, 2, 2], [1, 2, 3], [0, -1, 3], [0, 2, 4]] {
        let error = broken(|b| b.query_ranges = ranges.to_vec());
        assert_eq!(error, BatchError::QueryRanges, "{ranges:?}");
    }
    let text = "batch: query ranges: expected to rise from 0 to the number of tokens";
    assert_eq!(BatchError::QueryRanges.to_string(), text);
}

#[test]
fn positions_rise_one_by_one_to_the_last_key() {
    let changes: [(usize, Change); 7] = [
        (0, |b| b.positions[1] = 7),
        (0, |b| b.positions[1] = 5),
        (0, |b| b.kv_lens[0] = 8),
        (1, |b| b.kv_lens[1] = 0),
        (1, |b| (b.positions[2], b.kv_lens[1]) = (-1, 0)),
        (1, |b| (b.positions[2], b.kv_lens[1]) = (8, 9)),
        (1, |b| (b.positions[2], b.kv_lens[1]) = (i32::MAX, i32::MIN)),
    ];
    for (index, (sequence, change)) in changes.into_iter().enumerate() {
        assert_eq!(broken(change), BatchError::Positions { sequence }, "change {index}");
    }
    let idle = GraphParams { sequences: 1, ..params(0) };
    let negative = Batch { kv_lens: vec![-1], ..batch(&idle, 0) };
    assert_eq!(negative.validate(&idle, VOCABULARY), Err(BatchError::Positions { sequence: 0 }));
    let text = "batch: sequence 0: expected positions that rise one by one and end at the last key";
    assert_eq!(BatchError::Positions { sequence: 0 }.to_string(), text);
}

#[test]
fn a_token_is_stored_where_its_page_table_says() {
    // A row of the other sequence's page.
    let error = broken(|b| b.cache_rows[0][2] = 5);
    assert_eq!(error, BatchError::CacheRow { group: 0, row: 2, expected: Some(28), found: 5 });
    assert_eq!(error.to_string(), "batch: cache rows of group 0[2]: expected 28, found 5");
    let error = broken(|b| b.page_tables[0][1] = -1);
    assert_eq!(error, BatchError::CacheRow { group: 0, row: 0, expected: None, found: 5 });
    assert_eq!(error.to_string(), "batch: row 0: group 0 has no page for its position");
    // A page that has left the window may be missing.
    let (params, mut batch) = ragged();
    batch.page_tables[0][0] = -1;
    assert_eq!(batch.validate(&params, VOCABULARY), Ok(()));
}

//! Lists that follow one another, against plain ones, and what they share.

use proptest::prelude::*;

use super::*;

/// What one change may make anew: the piece that it is in, in two if it became too long, and a short
/// last one.
const NEW: usize = 3;

fn list(elements: impl IntoIterator<Item = usize>) -> Pieces<usize> {
    let mut joiner = Joiner::new(None);
    elements
        .into_iter()
        .for_each(|element| joiner.push(element));
    joiner.finish()
}

/// What happens to an element.
#[derive(Clone, Copy, Debug)]
enum Change {
    Delete,
    /// Before it, or at the end.
    Insert(usize),
    Replace(usize),
}

/// Makes one change, and the same in a plain list.
fn changed(
    old: &Pieces<usize>,
    model: &mut Vec<usize>,
    at: usize,
    change: Change,
) -> Pieces<usize> {
    let mut joiner = Joiner::new(Some(old));
    (0..at).for_each(|place| joiner.keep(place));
    let behind = match change {
        Change::Delete => {
            model.remove(at);
            at + 1
        }
        Change::Insert(new) => {
            joiner.push(new);
            model.insert(at, new);
            at
        }
        Change::Replace(new) => {
            joiner.push(new);
            model[at] = new;
            at + 1
        }
    };
    (behind..old.len()).for_each(|place| joiner.keep(place));
    assert_eq!(joiner.len(), model.len());
    joiner.finish()
}

/// Returns how many pieces the new list does not share.
fn new_pieces(old: &Pieces<usize>, new: &Pieces<usize>) -> usize {
    let of_old = |piece: &&Arc<[usize]>| old.pieces.iter().any(|old| Arc::ptr_eq(old, piece));
    new.pieces.len() - new.pieces.iter().filter(of_old).count()
}

fn assert_is(list: &Pieces<usize>, model: &[usize]) {
    assert!(list.iter().eq(model));
    assert_eq!((list.len(), list.iter().len()), (model.len(), model.len()));
    assert!((0..model.len()).all(|place| list.get(place) == model.get(place)));
    assert_eq!(list.get(model.len()), None);
    if let Some((last, others)) = list.pieces.split_last() {
        let sizes = others.iter().map(|piece| piece.len());
        assert!(sizes.clone().all(|len| (LEAST..=MOST).contains(&len)));
        assert!((1..=MOST).contains(&last.len()));
    }
}

#[test]
fn a_change_of_one_element_shares_all_but_its_surroundings() {
    let old = list(0..10_000);
    for at in [0, 1, 127, 128, 129, 5_000, 9_983, 9_984, 9_985, 9_999] {
        for change in [
            Change::Delete,
            Change::Insert(77_777),
            Change::Replace(77_777),
        ] {
            let mut model: Vec<usize> = (0..10_000).collect();
            let new = changed(&old, &mut model, at, change);
            assert_is(&new, &model);
            assert!(new_pieces(&old, &new) <= NEW, "{change:?} at {at}");
        }
    }
    let mut model: Vec<usize> = (0..10_000).collect();
    let new = changed(&old, &mut model, 10_000, Change::Insert(77_777));
    assert_is(&new, &model);
    assert_eq!(new_pieces(&old, &new), 1);
}

#[test]
fn many_changes_do_not_make_many_pieces() {
    let (mut last, mut model) = (list([]), Vec::new());
    for nth in 0..1_000_usize {
        // At the end, at the beginning and in the middle.
        let at = [model.len(), 0, model.len() / 2][nth % 3];
        let new = changed(&last, &mut model, at, Change::Insert(nth));
        assert!(new_pieces(&last, &new) <= NEW);
        last = new;
    }
    assert_is(&last, &model);
    for nth in 0..1_000_usize {
        let at = [model.len() - 1, 0, model.len() / 2][nth % 3];
        let new = changed(&last, &mut model, at, Change::Delete);
        assert!(new_pieces(&last, &new) <= NEW);
        last = new;
    }
    assert!(last.pieces.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn changes_add_up_and_stay_cheap(
        len in prop::sample::select(vec![0, 1, 127, 128, 129, 255, 256, 257, 1_000, 3_000]),
        steps in prop::collection::vec((0..3_u8, any::<prop::sample::Index>()), 1..150),
    ) {
        let mut model: Vec<usize> = (0..len).collect();
        let mut last = list(0..len);
        for (nth, (kind, at)) in steps.into_iter().enumerate() {
            let change = match kind {
                0 if !model.is_empty() => Change::Delete,
                1 if !model.is_empty() => Change::Replace(10_000 + nth),
                _ => Change::Insert(10_000 + nth),
            };
            let places = model.len() + usize::from(matches!(change, Change::Insert(_)));
            let new = changed(&last, &mut model, at.index(places), change);
            assert_is(&new, &model);
            prop_assert!(new_pieces(&last, &new) <= NEW);
            last = new;
        }
    }

    /// Many changes at once, and elements in another order.
    #[test]
    fn whatever_is_kept_comes_where_it_was_put(
        rows in prop::collection::vec(
            prop::collection::vec((0..700_usize, 0..300_usize, 0..2_usize), 1..8),
            1..5,
        ),
    ) {
        let mut model: Vec<usize> = (0..600).collect();
        let mut last = list(0..600);
        for ranges in rows {
            let (mut joiner, mut next) = (Joiner::new(Some(&last)), Vec::new());
            for (start, len, new) in ranges {
                for (place, element) in model.iter().enumerate().skip(start).take(len) {
                    joiner.keep(place);
                    next.push(*element);
                }
                for new in 0..new {
                    joiner.push(new);
                    next.push(new);
                }
            }
            last = joiner.finish();
            model = next;
            assert_is(&last, &model);
        }
    }
}

#[test]
fn a_sorted_list_is_searched_as_a_slice_is() {
    for len in [0, 1, 2, 127, 128, 129, 1000] {
        let slice: Vec<usize> = (0..len).map(|nth| nth * 2).collect();
        let list = list(slice.iter().copied());
        for wanted in 0..len * 2 + 2 {
            assert_eq!(
                list.search(|element| element.cmp(&wanted)),
                slice.binary_search(&wanted)
            );
        }
        assert_is(&list, &slice);
    }
}

//! Which message ids are held, and where.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher, RandomState};

use crate::client::pull::decode::MessageId;

/// Where a held message stands: its block, and its position there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) block: u32,
    pub(super) at: u32,
}

/// Ids of held messages. Numbers and texts are apart, so that the usual id costs neither memory nor a comparison of text.
#[derive(Debug, Default)]
pub(super) struct Ids {
    numbers: Numbers,
    texts: HashMap<Box<str>, Place>,
}

impl Ids {
    /// Notes that `id` is at `place`, unless it is held already: then where.
    #[inline]
    pub(super) fn hold(&mut self, id: &MessageId, place: Place) -> Option<Place> {
        match id {
            MessageId::Number(number) => self.numbers.hold(*number, place),
            MessageId::Text(text) => match self.texts.entry(text.clone()) {
                Entry::Occupied(held) => Some(*held.get()),
                Entry::Vacant(free) => {
                    free.insert(place);
                    None
                }
            },
        }
    }

    #[inline]
    pub(super) fn forget(&mut self, id: &MessageId) {
        match id {
            MessageId::Number(number) => self.numbers.forget(*number),
            MessageId::Text(text) => _ = self.texts.remove(text),
        }
    }
}

/// Numbers in one flat table, neighbours beside each other: the service numbers the messages of a publish one after
/// another, so most look-ups find their slot in the cache.
///
/// Slots are in the order of their homes, with each as near behind its home as that allows (linear probing, "Robin Hood").
/// So a search ends at the first slot nearer to its home than the search is, and a removal moves what follows up to the
/// first slot that is at home. At least half of the slots are free.
///
/// The service chooses the numbers. Should they ever crowd together, by chance or by malice, the table notices and gives
/// them homes by a keyed hash from then on, at some cost in speed.
#[derive(Debug, Default)]
struct Numbers {
    /// A power of two of them, or none.
    slots: Box<[Slot]>,
    held: usize,
    /// Leaves of a product the bits that name a group of slots.
    shift: u32,
    /// Of numbers that crowded together.
    keyed: Option<RandomState>,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    number: u64,
    place: Place,
}

/// No number of 19 digits is so large.
const FREE: u64 = u64::MAX;
/// Numbers that share all but these bits have homes beside each other: four slots are a line of the cache.
const NEIGHBOURS: u32 = 2;
const SMALLEST: usize = 64;
/// Slots that a step may look at before the numbers count as crowded; by a good hash it takes tens of millions for that.
const CROWDED: usize = 128;

impl Numbers {
    #[inline(always)]
    fn home(&self, number: u64) -> usize {
        if let Some(keyed) = &self.keyed {
            return (keyed.hash_one(number) >> (self.shift - NEIGHBOURS)) as usize;
        }
        // The golden ratio's digits: the upper bits of the product depend on every bit (Fibonacci hashing).
        let group = (number >> NEIGHBOURS).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift;
        (group << NEIGHBOURS | number & ((1 << NEIGHBOURS) - 1)) as usize
    }

    /// How far the number in slot `at` is behind its home.
    #[inline(always)]
    fn distance(&self, at: usize, number: u64) -> usize {
        at.wrapping_sub(self.home(number)) & (self.slots.len() - 1)
    }

    #[inline(always)]
    fn after(&self, at: usize) -> usize {
        (at + 1) & (self.slots.len() - 1)
    }

    #[inline]
    fn hold(&mut self, number: u64, place: Place) -> Option<Place> {
        if self.held * 2 >= self.slots.len() {
            self.grow();
        }
        let home = self.home(number);
        let slot = &mut self.slots[home];
        if slot.number == FREE {
            *slot = Slot { number, place };
            self.held += 1;
            return None;
        }
        self.hold_behind(home, Slot { number, place })
    }

    /// [`hold`](Self::hold) where the home is taken.
    fn hold_behind(&mut self, home: usize, new: Slot) -> Option<Place> {
        let (mut at, mut distance) = (home, 0);
        loop {
            let slot = self.slots[at];
            if slot.number == new.number {
                return Some(slot.place);
            }
            if slot.number == FREE || self.distance(at, slot.number) < distance {
                break;
            }
            at = self.after(at);
            distance += 1;
        }
        // It takes that slot; what is there, and behind it, moves up to the next free slot.
        self.held += 1;
        let mut slot = new;
        while slot.number != FREE {
            std::mem::swap(&mut self.slots[at], &mut slot);
            at = self.after(at);
        }
        self.look_for_crowds(home, at);
        None
    }

    /// After a step that went from slot `from` to slot `to`.
    #[inline]
    fn look_for_crowds(&mut self, from: usize, to: usize) {
        let looked_at = to.wrapping_sub(from) & (self.slots.len() - 1);
        if looked_at > CROWDED && self.keyed.is_none() {
            self.keyed = Some(RandomState::new());
            self.rebuild(self.slots.len());
        }
    }

    #[inline]
    fn forget(&mut self, number: u64) {
        if self.held == 0 {
            return;
        }
        let home = self.home(number);
        let (mut at, mut distance) = (home, 0);
        loop {
            let other = self.slots[at].number;
            if other == number {
                break;
            }
            if other == FREE || self.distance(at, other) < distance {
                return;
            }
            at = self.after(at);
            distance += 1;
        }
        self.held -= 1;
        loop {
            let next = self.after(at);
            let slot = self.slots[next];
            if slot.number == FREE || self.home(slot.number) == next {
                self.slots[at].number = FREE;
                return self.look_for_crowds(home, at);
            }
            self.slots[at] = slot;
            at = next;
        }
    }

    #[cold]
    fn grow(&mut self) {
        self.rebuild((self.slots.len() * 2).max(SMALLEST));
    }

    #[cold]
    fn rebuild(&mut self, slots: usize) {
        let free = Slot {
            number: FREE,
            place: Place::default(),
        };
        let slots = vec![free; slots];
        self.shift = u64::BITS - (slots.len().ilog2() - NEIGHBOURS);
        let before = std::mem::replace(&mut self.slots, slots.into());
        self.held = 0;
        for slot in before {
            if slot.number != FREE {
                self.hold(slot.number, slot.place);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Numbers as a service may give them out, and how far they are from their homes on average.
    fn mean_distance(numbers: impl Iterator<Item = u64>) -> f64 {
        let mut table = Numbers::default();
        for number in numbers {
            assert_eq!(table.hold(number, Place::default()), None);
        }
        let slots = table.slots.iter().enumerate();
        let held = slots.filter(|(_, slot)| slot.number != FREE);
        let total: usize = held.map(|(at, slot)| table.distance(at, slot.number)).sum();
        total as f64 / table.held as f64
    }

    #[test]
    fn whatever_the_step_numbers_stay_near_their_homes() {
        for step in [1, 2, 7, 8, 10, 1 << 20, 1 << 44] {
            let numbers = (0..10_000).map(|n| 9_000_000_000_000_000 + n * step);
            let mean = mean_distance(numbers);
            assert!(mean < 2.0, "{mean} of step {step}");
        }
        let mut random = fastrand::Rng::with_seed(1);
        let mean = mean_distance((0..10_000).map(|_| random.u64(..FREE)));
        assert!(mean < 2.0, "{mean} at random");
    }

    #[test]
    fn numbers_that_crowd_together_are_spread_by_a_keyed_hash() {
        // What the golden ratio's digits multiply to small numbers, whose upper bits are all zero.
        let mut inverse: u64 = 1;
        for _ in 0..6 {
            let product = inverse.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            inverse = inverse.wrapping_mul(2u64.wrapping_sub(product));
        }
        let groups = (1u64..).map(|product| product.wrapping_mul(inverse));
        let numbers = groups.filter(|group| group >> (64 - NEIGHBOURS) == 0);
        let crowd: Vec<u64> = numbers
            .map(|group| group << NEIGHBOURS)
            .take(5_000)
            .collect();
        let mean = mean_distance(crowd.iter().copied());
        assert!(mean < 2.0, "{mean}");
        let mut table = Numbers::default();
        for (at, number) in crowd.iter().enumerate() {
            let place = Place {
                block: at as u32,
                at: 0,
            };
            assert_eq!(table.hold(*number, place), None);
        }
        assert!(table.keyed.is_some());
        for (at, number) in crowd.iter().enumerate() {
            let held = table.hold(*number, Place::default());
            assert_eq!(held.map(|place| place.block), Some(at as u32));
        }
        crowd.iter().for_each(|number| table.forget(*number));
        assert_eq!(table.held, 0);
    }

    proptest! {
        #[test]
        fn it_holds_what_a_map_holds(
            steps in prop::collection::vec((any::<bool>(), 0u64..300, 0u32..3), 0..600),
        ) {
            let (mut ids, mut map) = (Ids::default(), HashMap::new());
            for (n, (hold, number, kind)) in steps.into_iter().enumerate() {
                let id = match kind {
                    0 => MessageId::Number(number),
                    1 => MessageId::Number(number << 40),
                    _ => MessageId::Text(format!("t{number}").into()),
                };
                let place = Place { block: n as u32, at: kind };
                if hold {
                    let held = map.get(&id).copied();
                    prop_assert_eq!(ids.hold(&id, place), held);
                    map.entry(id).or_insert(place);
                } else {
                    ids.forget(&id);
                    map.remove(&id);
                }
                prop_assert_eq!(ids.numbers.held + ids.texts.len(), map.len());
            }
            for (id, place) in &map {
                prop_assert_eq!(ids.hold(id, Place::default()), Some(*place));
            }
        }
    }
}

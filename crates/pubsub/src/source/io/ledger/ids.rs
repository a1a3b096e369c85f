//! Which message ids are held, and where.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

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
/// first slot that is at home. At least half of the slots are free. Nobody outside chooses the numbers.
#[derive(Debug, Default)]
struct Numbers {
    /// A power of two of them, or none.
    slots: Box<[Slot]>,
    held: usize,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    number: u64,
    place: Place,
}

/// No number of 19 digits is so large.
const FREE: u64 = u64::MAX;
/// Numbers that share all but these bits have homes beside each other.
const NEIGHBOURS: u32 = 3;
const SMALLEST: usize = 64;

impl Numbers {
    #[inline]
    fn home(&self, number: u64) -> usize {
        // The golden ratio's digits. Of the product's two halves together every bit depends on every bit of the number.
        let product = u128::from(number >> NEIGHBOURS) * 0x9e37_79b9_7f4a_7c15;
        let group = (product >> 64) as u64 ^ product as u64;
        let within = number & ((1 << NEIGHBOURS) - 1);
        (group << NEIGHBOURS | within) as usize & (self.slots.len() - 1)
    }

    /// How far the number in slot `at` is behind its home.
    #[inline]
    fn distance(&self, at: usize, number: u64) -> usize {
        at.wrapping_sub(self.home(number)) & (self.slots.len() - 1)
    }

    #[inline]
    fn after(&self, at: usize) -> usize {
        (at + 1) & (self.slots.len() - 1)
    }

    #[inline]
    fn hold(&mut self, number: u64, place: Place) -> Option<Place> {
        if self.held * 2 >= self.slots.len() {
            self.grow();
        }
        let (mut at, mut distance) = (self.home(number), 0);
        loop {
            let slot = self.slots[at];
            if slot.number == number {
                return Some(slot.place);
            }
            if slot.number == FREE || self.distance(at, slot.number) < distance {
                self.insert(at, Slot { number, place });
                return None;
            }
            at = self.after(at);
            distance += 1;
        }
    }

    /// Puts `slot` at `at` and moves what is there, and behind it, up to the next free slot.
    #[inline]
    fn insert(&mut self, mut at: usize, mut slot: Slot) {
        self.held += 1;
        while slot.number != FREE {
            std::mem::swap(&mut self.slots[at], &mut slot);
            at = self.after(at);
        }
    }

    #[inline]
    fn forget(&mut self, number: u64) {
        if self.held == 0 {
            return;
        }
        let (mut at, mut distance) = (self.home(number), 0);
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
            if slot.number == FREE || self.distance(next, slot.number) == 0 {
                self.slots[at].number = FREE;
                return;
            }
            self.slots[at] = slot;
            at = next;
        }
    }

    #[cold]
    fn grow(&mut self) {
        let free = Slot {
            number: FREE,
            place: Place::default(),
        };
        let slots = vec![free; (self.slots.len() * 2).max(SMALLEST)];
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
            assert!(mean < 8.0, "{mean} of step {step}");
        }
        let mut random = fastrand::Rng::with_seed(1);
        let mean = mean_distance((0..10_000).map(|_| random.u64(..FREE)));
        assert!(mean < 8.0, "{mean} at random");
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

//! Batches: the request that a queue's messages grow into.
//!
//! A batch is one buffer that starts with the gRPC prefix and the topic and is sent as the HTTP body as it is. Sealed, it
//! is kept with the place of each message until the verdict is in, so a message that must go alone is a slice of it.
//!
//! # Invariants
//!
//! - A retried request keeps its composition: the sealed body is what every attempt sends (PS-SINK-06).
//! - Only a single message passes the byte limit.

use bytes::{BufMut, Bytes, BytesMut};

use crate::message::{Message, field_len, put_field};

/// A gRPC message's prefix: not compressed, four bytes of length.
const PREFIX: usize = 5;
/// Fields of `PublishRequest`.
const TOPIC: u32 = 1;
const MESSAGES: u32 = 2;

/// When a batch leaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) messages: usize,
    pub(crate) bytes: usize,
}

/// One message of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    /// Its place among the writer's messages.
    pub(crate) sequence: u64,
    start: usize,
    end: usize,
}

impl Slot {
    /// Its encoded bytes, what the bounds count.
    pub(crate) fn size(&self) -> usize {
        self.end - self.start
    }
}

/// The memory of an answered request, for a new one.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    body: BytesMut,
    slots: Vec<Slot>,
}

/// Buffers that wait for their next request, so many bytes of them at most.
///
/// Keys that are used in turn fill their batches at the same time and begin new ones at the same time, so as many
/// buffers wait for a moment as there are keys. Those that find no place here grow anew from nothing.
#[derive(Debug)]
pub(crate) struct Spare {
    buffers: Vec<Buffers>,
    bytes: usize,
    most_bytes: usize,
}

impl Spare {
    /// Buffers that grew beyond this for one large message are not kept.
    const LARGEST: usize = 256 << 10;
    /// Small ones are bounded by their number.
    const MOST: usize = 1_024;

    pub(crate) fn new(most_bytes: usize) -> Self {
        Self {
            buffers: Vec::new(),
            bytes: 0,
            most_bytes,
        }
    }

    pub(crate) fn take(&mut self) -> Buffers {
        let buffers = self.buffers.pop().unwrap_or_default();
        self.bytes -= buffers.body.capacity();
        buffers
    }

    /// Keeps the memory of an answered request, if nothing else holds on to it and there is a place for it.
    pub(crate) fn keep(&mut self, answered: Sealed) {
        if self.buffers.len() < Self::MOST
            && let Some(buffers) = answered.recycle()
        {
            let bytes = buffers.body.capacity();
            if bytes <= Self::LARGEST && self.bytes + bytes <= self.most_bytes {
                self.bytes += bytes;
                self.buffers.push(buffers);
            }
        }
    }
}

/// What every request to a topic starts with.
pub(crate) fn head(topic: &str) -> Bytes {
    let mut head = BytesMut::with_capacity(PREFIX + field_len(TOPIC, topic.len()));
    head.put_bytes(0, PREFIX);
    put_field(&mut head, TOPIC, topic.as_bytes());
    head.freeze()
}

/// A batch that still grows.
#[derive(Debug)]
pub(crate) struct OpenBatch {
    /// Tells it from every other batch of the writer.
    pub(crate) number: u64,
    body: BytesMut,
    slots: Vec<Slot>,
    /// Its delay passed while its key had a request in flight.
    pub(crate) overdue: bool,
}

impl OpenBatch {
    pub(crate) fn new(number: u64, head: &Bytes, buffers: Buffers) -> Self {
        let Buffers { mut body, slots } = buffers;
        body.extend_from_slice(head);
        Self {
            number,
            body,
            slots,
            overdue: false,
        }
    }

    /// Whether a message of `size` bytes would carry it past the limit.
    #[inline]
    pub(crate) fn would_overflow(&self, limits: Limits, size: usize) -> bool {
        !self.slots.is_empty()
            && self.body.len() - PREFIX + field_len(MESSAGES, size) > limits.bytes
    }

    #[inline]
    pub(crate) fn is_full(&self, limits: Limits) -> bool {
        self.slots.len() >= limits.messages || self.body.len() - PREFIX >= limits.bytes
    }

    #[inline]
    pub(crate) fn push(&mut self, message: &Message, size: usize, sequence: u64) {
        message.put_into(&mut self.body, MESSAGES, size);
        self.place(self.body.len() - size, sequence);
    }

    /// Adds a message that was encoded before.
    pub(crate) fn push_encoded(&mut self, message: &[u8], sequence: u64) {
        put_field(&mut self.body, MESSAGES, message);
        self.place(self.body.len() - message.len(), sequence);
    }

    #[inline]
    fn place(&mut self, start: usize, sequence: u64) {
        let end = self.body.len();
        self.slots.push(Slot {
            sequence,
            start,
            end,
        });
    }

    /// No message is added any more.
    pub(crate) fn seal(self) -> Sealed {
        let Self {
            mut body, slots, ..
        } = self;
        let length = u32::try_from(body.len() - PREFIX)
            .expect("a request is the service's limit and one message, far below 4 GiB");
        body[1..PREFIX].copy_from_slice(&length.to_be_bytes());
        Sealed {
            body: body.freeze(),
            slots,
        }
    }
}

/// A request as it travels.
#[derive(Debug)]
pub(crate) struct Sealed {
    pub(crate) body: Bytes,
    pub(crate) slots: Vec<Slot>,
}

impl Sealed {
    /// One message, without a copy.
    pub(crate) fn message(&self, slot: &Slot) -> Bytes {
        self.body.slice(slot.start..slot.end)
    }

    /// Its memory, if nothing else holds on to it.
    pub(crate) fn recycle(self) -> Option<Buffers> {
        let Self { body, mut slots } = self;
        let mut body = body.try_into_mut().ok()?;
        body.clear();
        slots.clear();
        Some(Buffers { body, slots })
    }
}

#[cfg(test)]
mod tests {
    use googleapis_tonic_google_pubsub_v1::google::pubsub::v1::PublishRequest;
    use proptest::prelude::*;
    use prost::Message as _;

    use super::*;

    fn open() -> OpenBatch {
        OpenBatch::new(1, &head("projects/p/topics/t"), Buffers::default())
    }

    proptest! {
        #[test]
        fn a_sealed_batch_is_the_request_that_the_generated_type_reads(
            data in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 1..20),
        ) {
            let mut batch = open();
            for (sequence, data) in data.iter().enumerate() {
                let mut message = Message::new();
                message.data(data).attribute("k", "v").ordering_key("key");
                if sequence % 2 == 0 {
                    batch.push(&message, message.encoded_len(), sequence as u64);
                } else {
                    batch.push_encoded(&message.encode(), sequence as u64);
                }
            }
            let sealed = batch.seal();
            prop_assert_eq!(&sealed.body[1..5], &u32::try_from(sealed.body.len() - 5).expect("small").to_be_bytes());
            let request = PublishRequest::decode(&sealed.body[5..]).expect("ours");
            prop_assert_eq!(request.topic, "projects/p/topics/t");
            prop_assert_eq!(request.messages.len(), data.len());
            for ((slot, message), data) in sealed.slots.iter().zip(&request.messages).zip(&data) {
                prop_assert_eq!(&message.data[..], &data[..]);
                prop_assert_eq!(sealed.message(slot), message.encode_to_vec());
                prop_assert_eq!(slot.size(), message.encoded_len());
            }
        }

        #[test]
        fn a_batch_that_heeds_its_limits_never_passes_them_with_two_messages(
            sizes in prop::collection::vec(1_usize..400, 1..60), bytes in 30_usize..600, messages in 1_usize..9,
        ) {
            let limits = Limits { messages, bytes };
            let mut batch = open();
            for (sequence, size) in sizes.into_iter().enumerate() {
                let mut message = Message::new();
                message.data(vec![7; size]);
                let size = message.encoded_len();
                if batch.would_overflow(limits, size) {
                    batch = open();
                }
                batch.push(&message, size, sequence as u64);
                prop_assert!(batch.slots.len() <= messages);
                prop_assert!(batch.slots.len() == 1 || batch.body.len() - PREFIX <= bytes);
                if batch.is_full(limits) {
                    batch = open();
                }
            }
        }
    }

    #[test]
    fn spare_memory_is_bounded_and_one_large_message_is_not_kept() {
        let of = |size: usize| {
            let mut batch = open();
            batch.push_encoded(&vec![7; size], 0);
            batch.seal()
        };
        let mut spare = Spare::new(10 << 10);
        for _ in 0..20 {
            spare.keep(of(1_000));
        }
        let (kept, bytes) = (spare.buffers.len(), spare.bytes);
        assert!(
            (2..=10).contains(&kept) && bytes <= 10 << 10,
            "{kept} with {bytes}"
        );
        assert!(spare.take().body.capacity() >= 1_000);
        assert!(spare.bytes < bytes);
        while !spare.buffers.is_empty() {
            spare.take();
        }
        assert_eq!(spare.bytes, 0);
        assert_eq!(spare.take().body.capacity(), 0, "nothing is spare");
        let mut spare = Spare::new(usize::MAX);
        spare.keep(of(Spare::LARGEST));
        assert!(spare.buffers.is_empty());
        for _ in 0..2 * Spare::MOST {
            spare.keep(of(1));
        }
        assert_eq!(spare.buffers.len(), Spare::MOST);
    }

    #[test]
    fn memory_is_used_again_unless_a_message_is_still_held() {
        let mut batch = open();
        batch.push_encoded(b"\x0a\x01x", 0);
        let sealed = batch.seal();
        let held = sealed.message(&sealed.slots[0]);
        assert!(sealed.recycle().is_none());
        assert_eq!(&held[..], b"\x0a\x01x");
        let mut batch = open();
        batch.push_encoded(b"\x0a\x01x", 0);
        assert!(batch.seal().recycle().is_some());
    }
}

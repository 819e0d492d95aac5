//! The codec of all calls: prost's, behind a look at how many parts a message has.
//!
//! An empty event takes two bytes on the wire and a hundred times that in memory, so that a request within its limit
//! in bytes could ask for more than a gigabyte before anything has looked at it. The parts are counted before they are
//! decoded. What the parts are is not known here; the service checks that.

use std::marker::PhantomData;

use prost::Message;
use prost::bytes::Buf;
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder};
use tonic_prost::ProstCodec;

use crate::service::{Error, Fact, Reason};

/// Most messages and texts directly in one message: as many as the largest batch that can be configured.
pub(super) const PARTS_MAX: usize = 100_000;

/// Encodes `E` and decodes `D`.
#[derive(Debug)]
pub(super) struct BoundedCodec<E, D>(PhantomData<(E, D)>);

impl<E, D> Default for BoundedCodec<E, D> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<E: Message + Send + 'static, D: Message + Default + Send + 'static> Codec for BoundedCodec<E, D> {
    type Encode = E;
    type Decode = D;
    type Encoder = <ProstCodec<E, D> as Codec>::Encoder;
    type Decoder = BoundedDecoder<E, D>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<E, D>::default().encoder()
    }

    fn decoder(&mut self) -> Self::Decoder {
        BoundedDecoder(ProstCodec::<E, D>::default().decoder())
    }
}

/// prost's decoder for messages that have no more than [`PARTS_MAX`] parts.
#[derive(Debug)]
pub(super) struct BoundedDecoder<E, D>(<ProstCodec<E, D> as Codec>::Decoder)
where
    E: Message + Send + 'static,
    D: Message + Default + Send + 'static;

impl<E: Message + Send + 'static, D: Message + Default + Send + 'static> Decoder for BoundedDecoder<E, D> {
    type Item = D;
    type Error = Status;

    fn decode(&mut self, source: &mut DecodeBuf<'_>) -> Result<Option<D>, Status> {
        // A message stands in one piece.
        let size = parts(source.chunk());
        if size > PARTS_MAX {
            let fact = Fact::Limit { name: "message_parts_max", size: size as u64, limit: PARTS_MAX as u64 };
            let message = format!("the message has {size} parts; {PARTS_MAX} are allowed");
            return Err(Error::new(Reason::InvalidRequest, message).with(fact).into());
        }
        self.0.decode(source)
    }

    fn buffer_settings(&self) -> BufferSettings {
        self.0.buffer_settings()
    }
}

/// Counts the length-delimited fields of a message. Ends early where it is malformed, as the decoder will.
fn parts(mut message: &[u8]) -> usize {
    let mut count = 0;
    while let Ok(tag) = prost::encoding::decode_varint(&mut message) {
        let skipped = match tag & 7 {
            0 => prost::encoding::decode_varint(&mut message).map(|_| 0).ok(),
            1 => Some(8),
            2 => {
                count += 1;
                prost::encoding::decode_varint(&mut message).ok()
            }
            5 => Some(4),
            _ => None,
        };
        let rest = skipped.and_then(|bytes| message.get(usize::try_from(bytes).ok()?..));
        let Some(rest) = rest else { return count };
        message = rest;
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpc::pb;

    #[test]
    fn parts_are_counted_and_malformed_messages_are_left_to_the_decoder() {
        let events = vec![pb::NewEvent { r#type: "note".to_owned(), ..Default::default() }; 7];
        let append = pb::AppendRequest {
            session_id: "s".to_owned(),
            first_seq: Some(300),
            events,
            strict: true,
            ..Default::default()
        };
        let bytes = append.encode_to_vec();
        assert_eq!(parts(&bytes), 8);
        (0..bytes.len()).for_each(|end| assert!(parts(&bytes[..end]) <= 8));
        for malformed in [&[0xFF; 20][..], &[0x22, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F], &[0x23, 0x24], &[0x21, 1], &[]] {
            assert!(parts(malformed) <= 1);
        }
    }
}

//! Streams of any chunks: a refused one changes nothing, and what comes out is JSON.
#![no_main]

use arbitrary::{Arbitrary, Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use quipu_fuzz::chunk;
use quipu_fuzz::model::json;
use quipu_fuzz::replay::assemble::Assembler;

#[derive(Debug)]
struct Stream(Vec<String>);

impl<'a> Arbitrary<'a> for Stream {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        let mut chunks = Vec::new();
        while !u.is_empty() && chunks.len() < 300 {
            chunks.push(chunk(u)?);
        }
        Ok(Self(chunks))
    }
}

fn shown(assembler: &Assembler) -> String {
    let state = (assembler.replay_state().ok(), assembler.usage(), assembler.finish());
    format!("{:?} {:?} {state:?}", assembler.blocks(), assembler.interrupted_blocks())
}

fuzz_target!(|stream: Stream| {
    let mut assembler = Assembler::default();
    for chunk in &stream.0 {
        let Ok(doc) = json::parse(chunk.as_bytes()) else { continue };
        let before = shown(&assembler);
        if assembler.apply(doc.root()).is_err() {
            assert_eq!(shown(&assembler), before);
        }
    }
    let mut texts = assembler.interrupted_blocks();
    texts.extend(assembler.blocks().unwrap_or_default());
    texts.extend(assembler.usage().map(str::to_owned));
    texts.iter().for_each(|text| assert_eq!(json::check(text.as_bytes()), Ok(()), "{text}"));
});

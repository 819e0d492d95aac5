//! Compiles `proto/` without protoc, and keeps the descriptor for reflection.

use std::error::Error;
use std::path::PathBuf;
use std::{env, fs};

use protox::prost::Message;
use tonic_prost_build::FileDescriptorSet;

const FILES: &[&str] = &[
    "quipu/v1/types.proto",
    "quipu/v1/errors.proto",
    "quipu/v1/session.proto",
    "quipu/v1/log.proto",
    "quipu/v1/owner.proto",
    "quipu/v1/face.proto",
    "quipu/v1/view.proto",
    "quipu/v1/fork.proto",
    "quipu/v1/admin.proto",
    "quipu/v1/feed.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let mut compiler = protox::Compiler::new(["proto"])?;
    compiler.include_source_info(true).include_imports(true).open_files(FILES)?;
    // The bytes, not the struct: reflection then serves comments and options as written.
    let descriptor = compiler.encode_file_descriptor_set();
    fs::write(PathBuf::from(env::var("OUT_DIR")?).join("descriptor.bin"), &descriptor)?;
    let builder = tonic_prost_build::configure().bytes(".").codec_path("crate::rpc::codec::BoundedCodec");
    builder.compile_fds(FileDescriptorSet::decode(descriptor.as_slice())?)?;
    Ok(())
}

//! Archives: a ZIP with a session and, if asked, its descendants, as files of the reference harness, and a manifest.
//!
//! `session.jsonl` is the root, `subagents/<name>/session.jsonl` the descendants in the order of the tree, `manifest.json`
//! the last entry. Any ZIP tool opens one. There is exactly one archive for the same sessions, and the reader takes only
//! that: every byte is either compared with what [`Packer`] would have written, or covered by a checksum, so that no
//! name can lead elsewhere, nothing overlaps or hides, and no size is believed. Both directions are streams; memory is
//! that of one event, and of one small record per session.

mod directory;
mod error;
mod input;
mod manifest;
mod pack;
mod walk;

pub use error::ArchiveError;
pub use manifest::{Manifest, Member};
pub use pack::Packer;
pub use walk::{Limits, Visitor, verify, walk};

use crate::portable::dsh::file_name;

/// The last entry.
const MANIFEST: &str = "manifest.json";
/// The first entry.
const ROOT: &str = "session.jsonl";

/// Most sessions in one archive.
pub const SESSIONS_MAX: usize = 10_000;

/// The name of a session's entry: two ids never share one, and none leaves its directory.
fn entry_name(index: usize, id: &str) -> String {
    if index == 0 { ROOT.to_owned() } else { format!("subagents/{}/{ROOT}", file_name(id)) }
}

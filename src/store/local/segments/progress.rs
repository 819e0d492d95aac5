//! How far sealing is, for operators and metrics.

use std::sync::Arc;

/// How far sealing is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sealing {
    /// Sealed files, and their bytes.
    pub sealed_files: u64,
    /// See [`Sealing::sealed_files`].
    pub sealed_bytes: u64,
    /// Journal segments that could be sealed, and their bytes: the debt.
    pub debt_files: u64,
    /// See [`Sealing::debt_files`].
    pub debt_bytes: u64,
    /// Journal segments that are kept because they are damaged.
    pub kept_files: u64,
    /// Bytes of journal segments that were retired since the store was opened.
    pub retired_bytes: u64,
    /// Why the sealer stopped, if it did.
    pub problem: Option<Arc<str>>,
}

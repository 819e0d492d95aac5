//! Python, for clients and checks that share no code with us.

use std::path::PathBuf;
use std::process::Command;

use super::skipped;

/// The interpreter, if it has the modules; else says that the test is skipped.
pub fn with_modules(modules: &str) -> Option<PathBuf> {
    let python = std::env::var_os("QUIPU_PYTHON").map_or_else(|| PathBuf::from("python3"), PathBuf::from);
    let found = Command::new(&python).args(["-c", &format!("import {modules}")]).output();
    match found {
        Ok(output) if output.status.success() => Some(python),
        Ok(output) => {
            let why = String::from_utf8_lossy(&output.stderr).trim().lines().last().unwrap_or_default().to_owned();
            skipped(&format!("{}: {why} (see tests/clients/requirements.txt)", python.display()));
            None
        }
        Err(error) => {
            skipped(&format!("{}: {error}", python.display()));
            None
        }
    }
}

/// A file of this repository.
pub fn file(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(path)
}

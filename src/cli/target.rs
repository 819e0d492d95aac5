//! Where a client command connects, and as whom: the one place where the command line connects.

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use clap::Args;

use crate::rpc::client::{Access, Client};

/// Where a client command connects, and how it prints.
#[derive(Args)]
pub(super) struct Target {
    /// The server; https:// for one with TLS.
    #[arg(long, value_name = "URL", env = "QUIPU_ADDRESS", default_value = "http://127.0.0.1:7777", global = true)]
    pub(super) address: String,
    /// The tenant.
    #[arg(long, short, value_name = "NAME", env = "QUIPU_NAMESPACE", default_value = "default", global = true)]
    pub(super) namespace: String,
    /// PEM of the authority of the server's certificate; https needs it.
    #[arg(long, value_name = "FILE", env = "QUIPU_CA", global = true)]
    ca: Option<PathBuf>,
    /// PEM of a client certificate.
    #[arg(long, value_name = "FILE", env = "QUIPU_CERT", requires = "key", global = true)]
    cert: Option<PathBuf>,
    /// PEM of its key.
    #[arg(long, value_name = "FILE", env = "QUIPU_KEY", requires = "cert", global = true)]
    key: Option<PathBuf>,
    /// A token, or @FILE with one; everybody on this machine can read flags, so rather the variable or a file.
    #[arg(long, value_name = "TOKEN|@FILE", env = "QUIPU_TOKEN", hide_env_values = true, global = true)]
    token: Option<String>,
    /// Print JSON.
    #[arg(long, global = true)]
    pub(super) json: bool,
}

impl Target {
    /// Connects, or says how to start a server.
    pub(super) async fn connect(&self) -> anyhow::Result<Client> {
        let read = |path: &PathBuf| std::fs::read(path).with_context(|| path.display().to_string());
        let identity = match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => Some((read(cert)?, read(key)?)),
            _ => None,
        };
        let access = Access { ca: self.ca.as_ref().map(read).transpose()?, identity, token: self.token()? };
        let client = Client::connect_as(&self.address, &access).await;
        client.with_context(|| format!("no server at {}; start one with: quipu serve", self.address))
    }

    fn token(&self) -> anyhow::Result<Option<String>> {
        let Some(given) = &self.token else { return Ok(None) };
        let token = match given.strip_prefix('@') {
            Some(path) => std::fs::read_to_string(path).with_context(|| format!("--token {given}"))?,
            None => given.clone(),
        };
        let token = token.trim();
        if token.is_empty() {
            bail!("the token is empty");
        }
        Ok(Some(token.to_owned()))
    }
}

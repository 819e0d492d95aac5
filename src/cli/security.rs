//! Settings of who may come in, and of how much a stranger may cost.

use std::path::PathBuf;
use std::time::Duration;

use crate::rpc::tls;

/// See the settings.
#[derive(Clone, Debug)]
pub struct Security {
    /// Allow other addresses than loopback although nothing is encrypted or nobody is asked for a name.
    pub insecure: bool,
    /// Certificate of the listener.
    pub tls_cert: PathBuf,
    /// Its key.
    pub tls_key: PathBuf,
    /// Authorities of clients' certificates.
    pub tls_client_ca: PathBuf,
    /// Whether a client must have one.
    pub tls_client_auth: ClientAuth,
    /// How often files are looked at for changes.
    pub reload_interval: Duration,
    /// Time that a handshake may take, and the first bytes of HTTP/2.
    pub handshake_timeout: Duration,
    /// Handshakes at once.
    pub handshakes_max: usize,
    /// Connections of one address at once.
    pub connections_per_address: usize,
    /// Age at which a connection takes no more calls.
    pub connection_age_max: Option<Duration>,
    /// Time that its open calls then have.
    pub connection_age_grace: Duration,
}

/// Whether clients are asked for a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientAuth {
    /// They may have one.
    Optional,
    /// They must.
    Required,
}

impl std::fmt::Display for ClientAuth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if *self == Self::Optional { "optional" } else { "required" })
    }
}

impl std::str::FromStr for ClientAuth {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "optional" => Ok(Self::Optional),
            "required" => Ok(Self::Required),
            _ => Err("is none of optional, required"),
        }
    }
}

impl Default for Security {
    fn default() -> Self {
        Self {
            insecure: false,
            tls_cert: PathBuf::new(),
            tls_key: PathBuf::new(),
            tls_client_ca: PathBuf::new(),
            tls_client_auth: ClientAuth::Optional,
            reload_interval: Duration::from_secs(10),
            handshake_timeout: Duration::from_secs(10),
            handshakes_max: 256,
            connections_per_address: 2000,
            connection_age_max: None,
            connection_age_grace: Duration::from_secs(60),
        }
    }
}

impl Security {
    /// The TLS of the listener, if it has any.
    pub fn tls(&self) -> Option<tls::Options> {
        let client_ca = (!self.tls_client_ca.as_os_str().is_empty()).then(|| self.tls_client_ca.clone());
        (!self.tls_cert.as_os_str().is_empty()).then(|| tls::Options {
            cert: self.tls_cert.clone(),
            key: self.tls_key.clone(),
            client_ca,
            client_required: self.tls_client_auth == ClientAuth::Required,
            handshake_timeout: self.handshake_timeout,
            handshakes_max: self.handshakes_max,
        })
    }

    /// What an address lacks that more than this machine can reach; empty when it lacks nothing.
    pub fn lacks(&self) -> Vec<&'static str> {
        let is_encrypted = !self.tls_cert.as_os_str().is_empty();
        let asks = self.tls_client_auth == ClientAuth::Required;
        let lacking = [(is_encrypted, "encryption"), (asks, "authentication")];
        lacking.into_iter().filter(|(has, _)| !has).map(|(_, what)| what).collect()
    }

    /// What does not go together.
    pub(super) fn problems(&self) -> Vec<String> {
        let (has_cert, has_key) = (!self.tls_cert.as_os_str().is_empty(), !self.tls_key.as_os_str().is_empty());
        let has_ca = !self.tls_client_ca.as_os_str().is_empty();
        let rules = [
            (has_cert != has_key, "tls_cert and tls_key go together"),
            (has_ca && !has_cert, "tls_client_ca needs tls_cert and tls_key"),
            (self.tls_client_auth == ClientAuth::Required && !has_ca, "tls_client_auth = required needs tls_client_ca"),
            (!(1..=100_000).contains(&self.handshakes_max), "handshakes_max must be between 1 and 100000"),
            (self.connections_per_address > 1_000_000, "connections_per_address must be at most 1000000"),
        ];
        rules.into_iter().filter(|(is_wrong, _)| *is_wrong).map(|(_, problem)| problem.to_owned()).collect()
    }
}

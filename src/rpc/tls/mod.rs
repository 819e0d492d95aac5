//! TLS of the listener: a certificate with its key, and the authorities that clients' certificates come from.
//!
//! What is in force changes as a whole or not at all: files that do not read, do not fit each other or have expired
//! leave the old ones in force. A connection keeps what it began with. Who a client is, this module only reads from its
//! certificate; what it may do is decided elsewhere.

mod names;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::{Mutex, RwLock};
use rustls::RootCertStore;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;

pub use self::names::names;

/// Where certificates are.
#[derive(Clone, Debug)]
pub struct Options {
    /// PEM of the certificate and what stands between it and its authority.
    pub cert: PathBuf,
    /// PEM of its key.
    pub key: PathBuf,
    /// PEM of the authorities of clients' certificates; without them clients are not asked for one.
    pub client_ca: Option<PathBuf>,
    /// Whether a client without a certificate is turned away.
    pub client_required: bool,
    /// Time that a handshake may take.
    pub handshake_timeout: Duration,
    /// Handshakes at once.
    pub handshakes_max: usize,
}

/// Why files cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", path.display())]
pub struct Problem {
    path: PathBuf,
    problem: String,
}

impl Problem {
    fn new(path: &Path, problem: impl ToString) -> Self {
        Self { path: path.to_owned(), problem: problem.to_string() }
    }
}

/// The TLS of a listener.
pub struct Tls {
    options: Options,
    current: RwLock<Current>,
    /// What the files held when they were last looked at.
    seen: Mutex<blake3::Hash>,
    /// One permit for each handshake.
    pub(super) handshakes: Arc<tokio::sync::Semaphore>,
}

struct Current {
    config: Arc<ServerConfig>,
    expires_at: i64,
}

impl Tls {
    /// Reads the files.
    pub fn open(options: Options) -> Result<Self, Problem> {
        let files = Files::read(&options)?;
        let current = RwLock::new(files.current(&options)?);
        let handshakes = Arc::new(tokio::sync::Semaphore::new(options.handshakes_max));
        Ok(Self { current, seen: Mutex::new(files.hash()), handshakes, options })
    }

    /// Reads the files again. `Ok(false)`: nothing has changed since they were last looked at. An error leaves what is
    /// in force, and is told once for each change.
    pub fn reload(&self) -> Result<bool, Problem> {
        let files =
            Files::read(&self.options).inspect_err(|_| *self.seen.lock() = blake3::Hash::from_bytes([0; 32]))?;
        let hash = files.hash();
        if std::mem::replace(&mut *self.seen.lock(), hash) == hash {
            return Ok(false);
        }
        let next = files.current(&self.options)?;
        if next.expires_at <= now() {
            return Err(Problem::new(&self.options.cert, "has expired"));
        }
        *self.current.write() = next;
        Ok(true)
    }

    /// What the next handshake goes by.
    pub(super) fn config(&self) -> Arc<ServerConfig> {
        self.current.read().config.clone()
    }

    /// When the certificate in force ends, in seconds since 1970: the first end in its chain.
    pub fn expires_at(&self) -> i64 {
        self.current.read().expires_at
    }

    pub(super) fn handshake_timeout(&self) -> Duration {
        self.options.handshake_timeout
    }
}

fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64)
}

/// The bytes of all files.
struct Files {
    cert: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

impl Files {
    fn read(options: &Options) -> Result<Self, Problem> {
        let read = |path: &PathBuf| std::fs::read(path).map_err(|e| Problem::new(path, e));
        let client_ca = options.client_ca.as_ref().map(read).transpose()?;
        Ok(Self { cert: read(&options.cert)?, key: read(&options.key)?, client_ca })
    }

    fn hash(&self) -> blake3::Hash {
        let mut hash = blake3::Hasher::new();
        for part in [Some(&self.cert), Some(&self.key), self.client_ca.as_ref()].into_iter().flatten() {
            hash.update(&(part.len() as u64).to_le_bytes()).update(part);
        }
        hash.finalize()
    }

    fn current(&self, options: &Options) -> Result<Current, Problem> {
        let chain = certificates(&options.cert, &self.cert)?;
        let expires_at = chain.iter().map(|one| names::expires_at(one)).collect::<Result<Vec<_>, _>>();
        let expires_at = expires_at.map_err(|e| Problem::new(&options.cert, e))?.into_iter().min().unwrap_or(0);
        let key = PrivateKeyDer::from_pem_slice(&self.key).map_err(|e| Problem::new(&options.key, e))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions();
        let builder = builder.map_err(|e| Problem::new(&options.cert, e))?;
        let builder = match (&options.client_ca, &self.client_ca) {
            (Some(path), Some(bytes)) => {
                let mut roots = RootCertStore::empty();
                for authority in certificates(path, bytes)? {
                    roots.add(authority).map_err(|e| Problem::new(path, e))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                let verifier = if options.client_required { verifier } else { verifier.allow_unauthenticated() };
                builder.with_client_cert_verifier(verifier.build().map_err(|e| Problem::new(path, e))?)
            }
            _ => builder.with_no_client_auth(),
        };
        let mut config = builder.with_single_cert(chain, key).map_err(|e| Problem::new(&options.key, e))?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Current { config: Arc::new(config), expires_at })
    }
}

fn certificates(path: &Path, bytes: &[u8]) -> Result<Vec<CertificateDer<'static>>, Problem> {
    let found = CertificateDer::pem_slice_iter(bytes).collect::<Result<Vec<_>, _>>();
    let found = found.map_err(|e| Problem::new(path, e))?;
    if found.is_empty() { Err(Problem::new(path, "holds no certificate")) } else { Ok(found) }
}

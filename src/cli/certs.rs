//! `quipu certs`: an authority and certificates for tests and first steps.
//!
//! The authority's key lies in a file beside the certificates, which is no way to run one.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use clap::Args;
use jiff::ToSpan as _;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType,
};
use serde_json::json;

/// What is made.
#[derive(Args)]
pub(super) struct CertsArgs {
    /// The directory; made if missing.
    dir: PathBuf,
    /// A name or address of the server; may be given several times.
    #[arg(long = "host", value_name = "NAME", default_values = ["localhost", "127.0.0.1", "::1"])]
    hosts: Vec<String>,
    /// Make a pair for a client too: its certificate names spiffe://quipu/NAME; may be given several times.
    #[arg(long = "client", value_name = "NAME")]
    clients: Vec<String>,
    /// How long the pairs are good.
    #[arg(long, value_name = "DAYS", default_value_t = 365, value_parser = clap::value_parser!(u16).range(1..=3650))]
    days: u16,
    /// Make the server's pair anew, although there is one.
    #[arg(long)]
    renew: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn certs(args: &CertsArgs) -> anyhow::Result<()> {
    std::fs::create_dir_all(&args.dir).with_context(|| args.dir.display().to_string())?;
    let authority = authority(&args.dir)?;
    let mut made = Vec::new();
    let server = args.dir.join("server.pem");
    if args.renew || !server.exists() {
        let mut params = CertificateParams::new(args.hosts.clone()).context("--host")?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        made.push(pair(args, params, "server", &authority)?);
    }
    for name in &args.clients {
        let is_plain =
            !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
        ensure!(is_plain && name != "ca" && name != "server", "--client {name} must be letters, digits, - and _");
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![SanType::URI(format!("spiffe://quipu/{name}").try_into()?)];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        made.push(pair(args, params, name, &authority)?);
    }
    let ca = args.dir.join("ca.pem");
    if args.json {
        say!("{}", json!({ "ca": ca.display().to_string(), "made": made }))?;
    } else {
        say!("authority {}", ca.display())?;
        for cert in made {
            say!("made      {cert}")?;
        }
    }
    Ok(())
}

/// Valid from yesterday, since clocks differ.
fn between(params: &mut CertificateParams, days: i64) -> anyhow::Result<()> {
    let today = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).date();
    let day = |offset: i64| -> anyhow::Result<_> {
        let date = today.checked_add(offset.days())?;
        Ok(rcgen::date_time_ymd(i32::from(date.year()), date.month() as u8, date.day() as u8))
    };
    (params.not_before, params.not_after) = (day(-1)?, day(days)?);
    Ok(())
}

/// The authority of the directory, made if there is none.
fn authority(dir: &Path) -> anyhow::Result<Issuer<'static, KeyPair>> {
    let (cert_path, key_path) = (dir.join("ca.pem"), dir.join("ca.key"));
    if cert_path.exists() {
        let read = |path: &Path| std::fs::read_to_string(path).with_context(|| path.display().to_string());
        let key = KeyPair::from_pem(&read(&key_path)?).with_context(|| key_path.display().to_string())?;
        return Issuer::from_ca_cert_pem(&read(&cert_path)?, key).with_context(|| cert_path.display().to_string());
    }
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "quipu test authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    between(&mut params, 3650)?;
    write(&key_path, &key.serialize_pem(), 0o600)?;
    write(&cert_path, &params.self_signed(&key)?.pem(), 0o644)?;
    Ok(Issuer::new(params, key))
}

/// A certificate with its key; gives the certificate's path.
fn pair(
    args: &CertsArgs,
    mut params: CertificateParams,
    name: &str,
    authority: &Issuer<'static, KeyPair>,
) -> anyhow::Result<String> {
    let key = KeyPair::generate()?;
    params.distinguished_name.push(DnType::CommonName, name);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.use_authority_key_identifier_extension = true;
    between(&mut params, i64::from(args.days))?;
    let cert = params.signed_by(&key, authority)?;
    let path = args.dir.join(format!("{name}.pem"));
    write(&args.dir.join(format!("{name}.key")), &key.serialize_pem(), 0o600)?;
    write(&path, &cert.pem(), 0o644)?;
    Ok(path.display().to_string())
}

/// Puts a file in place as a whole, so that a server that looks at it never meets half of one.
fn write(path: &Path, text: &str, mode: u32) -> anyhow::Result<()> {
    let fresh = path.with_extension("new");
    let write = || -> std::io::Result<()> {
        // What is left of an earlier try has another mode, perhaps.
        drop(std::fs::remove_file(&fresh));
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&fresh)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&fresh, path)
    };
    write().with_context(|| path.display().to_string())
}

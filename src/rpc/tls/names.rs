//! What a certificate says: the names of whom it is for, and its last moment.

use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Alternative names in the order in which they stand: each with its kind before it: `uri:`, `dns:`,
/// `email:`. The subject names nobody: what stands there is for people. A certificate that does not parse has no
/// names, so that it opens nothing.
pub fn names(certificate: &[u8]) -> Vec<String> {
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else { return Vec::new() };
    let Ok(Some(names)) = certificate.subject_alternative_name() else { return Vec::new() };
    let name = |name: &GeneralName<'_>| match name {
        GeneralName::URI(uri) => Some(format!("uri:{uri}")),
        GeneralName::DNSName(name) => Some(format!("dns:{name}")),
        GeneralName::RFC822Name(name) => Some(format!("email:{name}")),
        _ => None,
    };
    names.value.general_names.iter().filter_map(name).collect()
}

/// Seconds since 1970 at which a certificate ends.
pub(super) fn expires_at(certificate: &[u8]) -> Result<i64, String> {
    let (_, certificate) = X509Certificate::from_der(certificate).map_err(|e| e.to_string())?;
    Ok(certificate.validity().not_after.timestamp())
}

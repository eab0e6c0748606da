//! Keys and certificates of one cluster: its authority, servers and API clients. They are removed with the clusters, so
//! they never expire.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

/// A certificate and its key, as files.
#[derive(Clone, Debug)]
pub(crate) struct CertificateFiles {
    /// PEM certificate.
    pub(crate) certificate: PathBuf,
    /// PEM private key.
    pub(crate) key: PathBuf,
}

/// The certificate authority of one cluster; it writes certificates into one directory.
#[derive(Debug)]
pub(crate) struct CertificateAuthority {
    directory: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

/// Subject of a certificate as Kubernetes interprets it: user and group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subject<'a> {
    /// The user (common name).
    pub(crate) user: &'a str,
    /// The group (organization).
    pub(crate) group: Option<&'a str>,
}

// === impl Authority ===

impl CertificateAuthority {
    /// Creates the authority; its certificate is `ca.crt`.
    pub(crate) fn create(directory: &Path, name: &str) -> Result<Self> {
        fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
        let key = KeyPair::generate().context("authority key")?;
        let mut params = CertificateParams::new(Vec::<String>::new())?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::CrlSign,
            KeyUsagePurpose::DigitalSignature,
        ];
        let certificate = params.self_signed(&key).context("authority certificate")?;
        let authority = Self {
            directory: directory.to_owned(),
            issuer: Issuer::new(params, key),
        };
        write(&authority.certificate(), &certificate.pem())?;
        Ok(authority)
    }

    /// The authority's certificate.
    pub(crate) fn certificate(&self) -> PathBuf {
        self.directory.join("ca.crt")
    }

    /// Issues a certificate that identifies a client.
    pub(crate) fn client(&self, file: &str, subject: Subject<'_>) -> Result<CertificateFiles> {
        self.issue(file, subject, &[], ExtendedKeyUsagePurpose::ClientAuth)
    }

    /// Issues a certificate for a server reachable under these names and addresses.
    pub(crate) fn server(&self, file: &str, user: &str, names: &[String]) -> Result<CertificateFiles> {
        let subject = Subject { user, group: None };
        self.issue(file, subject, names, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// Creates the key pair that signs ServiceAccount tokens: private and public key file.
    pub(crate) fn token_keys(&self) -> Result<(PathBuf, PathBuf)> {
        let key = KeyPair::generate().context("ServiceAccount key")?;
        let (private, public) = (self.directory.join("sa.key"), self.directory.join("sa.pub"));
        write(&private, &key.serialize_pem())?;
        write(&public, &key.public_key_pem())?;
        Ok((private, public))
    }

    fn issue(
        &self,
        file: &str,
        subject: Subject<'_>,
        names: &[String],
        usage: ExtendedKeyUsagePurpose,
    ) -> Result<CertificateFiles> {
        let key = KeyPair::generate().with_context(|| format!("key {file}"))?;
        let mut params = CertificateParams::new(names).with_context(|| format!("names {names:?}"))?;
        params.distinguished_name.push(DnType::CommonName, subject.user);
        if let Some(group) = subject.group {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        let certificate = params
            .signed_by(&key, &self.issuer)
            .with_context(|| format!("certificate {file}"))?;
        let identity = CertificateFiles {
            certificate: self.directory.join(format!("{file}.crt")),
            key: self.directory.join(format!("{file}.key")),
        };
        write(&identity.certificate, &certificate.pem())?;
        write(&identity.key, &key.serialize_pem())?;
        Ok(identity)
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.open(path).with_context(|| path.display().to_string())?;
    file.write_all(text.as_bytes())
        .with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_has_its_files_and_only_root_reads_them() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::tempdir().unwrap();
        let authority = CertificateAuthority::create(directory.path(), "test").unwrap();
        let names = ["172.30.1.254".to_owned(), "kubernetes".to_owned()];
        let server = authority.server("api", "kube-apiserver", &names).unwrap();
        let text = fs::read_to_string(&server.certificate).unwrap();
        assert!(text.starts_with("-----BEGIN CERTIFICATE-----"), "{text}");
        assert_eq!(
            fs::metadata(&server.key).unwrap().permissions().mode() & 0o777,
            0o600
        );
        let (_, public) = authority.token_keys().unwrap();
        assert!(
            fs::read_to_string(public)
                .unwrap()
                .starts_with("-----BEGIN PUBLIC KEY-----")
        );
    }
}

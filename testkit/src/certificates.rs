//! A certificate authority for one server: it signs that server and one client, and is forgotten.

use std::{fs, path::Path};

use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};

pub(crate) const ROOT: &str = "root.crt";
pub(crate) const SERVER_CERT: &str = "server.crt";
pub(crate) const SERVER_KEY: &str = "server.key";

/// What a client needs to speak TLS with a server, as PEM texts.
pub struct Certificates {
    /// The certificate of the authority that signed the server and the client.
    pub root: String,
    /// The client's certificate.
    pub client_cert: String,
    /// The client's private key.
    pub client_key: String,
}

impl Certificates {
    /// Leaves the server's part in its directory, and returns the client's.
    pub(crate) fn write(directory: &Path) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "root");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = key();
        let root = params.self_signed(&key).expect("an authority signs itself").pem();
        let issuer = Issuer::new(params, key);

        let (server_cert, server_key) = signed(&issuer, ExtendedKeyUsagePurpose::ServerAuth);
        for (name, text) in [(ROOT, &root), (SERVER_CERT, &server_cert), (SERVER_KEY, &server_key)] {
            fs::write(directory.join(name), text).expect("the directory is writable");
        }
        let (client_cert, client_key) = signed(&issuer, ExtendedKeyUsagePurpose::ClientAuth);
        Self { root, client_cert, client_key }
    }
}

/// A certificate for this machine and its key.
fn signed(issuer: &Issuer<'_, KeyPair>, usage: ExtendedKeyUsagePurpose) -> (String, String) {
    let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
    let mut params = CertificateParams::new(names).expect("the names are valid");
    params.distinguished_name.push(DnType::CommonName, "localhost");
    params.extended_key_usages.push(usage);
    let key = key();
    let cert = params.signed_by(&key, issuer).expect("the authority signs");
    (cert.pem(), key.serialize_pem())
}

fn key() -> KeyPair {
    KeyPair::generate().expect("there is randomness")
}

//! Serving by TLS: a certificate and its key become what connections are greeted with.

use std::{path::Path, sync::Arc};

use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    },
};

use crate::config::{Admin, Problem, secret};

/// Nothing where no certificate is named.
pub(crate) fn acceptor(admin: &Admin) -> Result<Option<TlsAcceptor>, Problem> {
    match (&admin.cert_file, &admin.key_file) {
        (Some(cert), Some(key)) => made(cert, key).map(Some),
        (None, None) => Ok(None),
        // Nobody who asks for TLS is served without.
        _ => Err(Problem::new("admin: a certificate and its key go together; write cert_file and key_file")),
    }
}

fn made(cert: &Path, key: &Path) -> Result<TlsAcceptor, Problem> {
    // What is in the files is not repeated.
    let no = |name: &str, what: &str, path: &Path| Problem::new(format!("{name}: {} holds no {what} (PEM)", path.display()));
    let no_cert = || no("admin.cert_file", "certificate", cert);
    let text = secret("admin.cert_file", cert)?;
    let chain: Vec<_> = CertificateDer::pem_slice_iter(text.as_bytes()).collect::<Result<_, _>>().map_err(|_| no_cert())?;
    if chain.is_empty() {
        return Err(no_cert());
    }
    let text = secret("admin.key_file", key)?;
    let key = PrivateKeyDer::from_pem_slice(text.as_bytes()).map_err(|_| no("admin.key_file", "private key", key))?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key));
    let config = config.map_err(|error| Problem::new(format!("admin.cert_file: it cannot be served by: {error}")))?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

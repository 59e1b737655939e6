//! Receipts as they leave the server and come back: with a tag that only who has the secret of the keys can write, where there is one.

use tidegate::Receipt;

/// The key that tags are made by; nothing where no secret is configured, and receipts are believed as they are.
#[derive(Clone, Copy)]
pub(crate) struct Seal(Option<[u8; 32]>);

/// Half of a digest is enough: nobody can try tags but by asking.
const TAG_DIGITS: usize = 32;

impl Seal {
    pub(crate) fn new(secret: &str) -> Self {
        const CONTEXT: &str = "tidegate 2026 receipt v1";
        Self((!secret.is_empty()).then(|| blake3::derive_key(CONTEXT, secret.as_bytes())))
    }

    /// Appends the text of a receipt.
    pub(super) fn append(&self, receipt: &Receipt, text: &mut Vec<u8>) {
        let start = text.len();
        receipt.append_to(text);
        if let Some(key) = &self.0 {
            let tag = blake3::keyed_hash(key, &text[start..]).to_hex();
            text.extend_from_slice(&tag.as_bytes()[..TAG_DIGITS]);
        }
    }

    /// Reads what was appended.
    pub(super) fn open(&self, text: &str) -> Result<Receipt, String> {
        let Some(key) = &self.0 else { return text.parse().map_err(|error: tidegate::ReceiptError| error.to_string()) };
        let forged = || "this server has not given out such a receipt".to_owned();
        let (text, tag) = text.split_at_checked(text.len().saturating_sub(TAG_DIGITS)).ok_or_else(forged)?;
        let digest = blake3::keyed_hash(key, text.as_bytes()).to_hex();
        // Digests are compared, which takes as long whatever is in them.
        let hash = |tag: &str| blake3::keyed_hash(key, tag.as_bytes());
        if hash(tag) != hash(&digest[..TAG_DIGITS]) {
            return Err(forged());
        }
        text.parse().map_err(|error: tidegate::ReceiptError| error.to_string())
    }
}

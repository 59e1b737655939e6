//! What goes wrong: exit codes, and what is said.

use std::{fs, net::TcpListener};

use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};

use super::{Served, ended, tidegate};

const PER_USER: &str = "[[policy]]\nname = \"per-user\"\nkey = [\"user\"]\nquota = \"1/2hours\"\n";

#[test]
fn each_code_means_what_help_says() {
    let running = Served::start(PER_USER);
    for (arguments, expected) in [
        (&["check", "user=42"][..], 0),
        (&["check", "user=42"], 1),
        (&["peek", "user=42"], 1),
        (&["peek", "user=43"], 0),
        (&["reset", "user=42"], 0),
        (&["top"], 0),
        // Wrong usage.
        (&["check", "user"], 2),
        (&["check", "=42"], 2),
        (&["reset", "user=~a4380503c3b0a5a0e6f0a4380503c3b0a5a0e6f0"], 2),
        (&["check", "user=42", "user=43"], 2),
        (&["inspect", "per-user", "user=42", "user=43"], 2),
        (&["check", "user=42", "--cost", "-1"], 2),
        (&["check", "user=42", "--cost", "9007199254740992"], 2),
        (&["check", "user=42", "--timeout", "soon"], 2),
        (&["check", "user=42", "--timeout", "0s"], 2),
        (&["check", "user=42", "--server", "ftp://127.0.0.1"], 2),
        (&["check", "user=42", "--server", "http://127.0.0.1", "--store", "redis://127.0.0.1/"], 2),
        (&["reset", "user=42", "--token-file", "none"], 2),
        (&["reset", "user=42", "--admin", "https://127.0.0.1:1", "--ca", "none"], 2),
        (&["reset", "user=42", "--admin", "https://127.0.0.1:1", "--ca", "tidegate.toml"], 2),
        (&["reset"], 2),
        (&["inspect", "user=42"], 2),
        (&["inspect", "per-user"], 2),
        (&["inspect", "nobody", "user=42"], 2),
        (&["top", "-n", "101"], 2),
        (&["top", "nobody"], 2),
        (&["denials", "-n", "0"], 2),
        (&["denials", "--store", "redis://127.0.0.1/"], 2),
        (&["policies", "set", "per-user"], 2),
        (&["policies", "set", "per-user", "--limit", "1", "--quota", "1/s"], 2),
        (&["policies", "set", "per-user", "--limit", "1", "--store", "redis://127.0.0.1/"], 2),
        (&["check", "user=42", "--store", "memory"], 2),
        (&["check", "user=42", "--store", "ftp://:secret@127.0.0.1/"], 2),
        (&["check", "user=42", "--config", "none.toml"], 2),
        (&["check", "user=42", "--config", "tidegate.toml"], 2),
        (&["completions", "tcsh"], 2),
        (&["man", "--output", "tidegate.toml/man"], 2),
        // Nobody can be asked.
        (&["check", "user=42", "--server", "http://127.0.0.1:1"], 3),
        (&["top", "--admin", "http://127.0.0.1:1"], 3),
        (&["check", "user=42", "--store", "redis://127.0.0.1:1/"], 3),
    ] {
        let (code, printed, said) = running.tidegate(arguments);
        assert_eq!(code, expected, "{arguments:?}: {printed}{said}");
        // What was found out is on standard output, what went wrong on the other.
        assert_eq!((printed.is_empty(), said.is_empty()), (code > 1, code <= 1), "{arguments:?}: {printed}{said}");
        assert!(!said.contains("secret"), "{said}");
    }
}

#[test]
fn what_to_do_is_said() {
    for (arguments, words) in [
        (
            &["check", "user=42"][..],
            &["nothing listens at http://127.0.0.1:1", "tidegate serve", "--server URL", "--store URL"][..],
        ),
        (&["top"], &["nothing listens at http://127.0.0.1:1", "tidegate serve", "--admin URL"]),
        (&["check", "user"], &["NAME=VALUE", "user=42"]),
        (&["check", "user=42", "--store", "memory"], &["memory", "server", "Redis"]),
        (&["denials", "--store", "redis://127.0.0.1/"], &["server", "--store"]),
        (
            &["check", "user=42", "--store", "redis://127.0.0.1:1/"],
            &["redis://127.0.0.1:1/", "no connection: Connection refused"],
        ),
    ] {
        let (_, _, said) = tidegate(arguments);
        for word in words {
            assert!(said.contains(word), "{arguments:?}: {said}");
        }
    }
}

#[test]
fn what_a_server_refuses_is_told_in_words_of_the_command() {
    let running = Served::start(PER_USER);
    for (arguments, expected) in [
        (&["top", "nobody"][..], "There is no such policy; `tidegate policies` (GET /v1/policies) lists them."),
        (&["inspect", "nobody", "user=42"], "There is no such policy; `tidegate policies` (GET /v1/policies) lists them."),
        (&["inspect", "per-user"], "it does not apply: name its key attributes, and a key that has a limit"),
    ] {
        let (_, _, said) = running.tidegate(arguments);
        assert_eq!(said, format!("{}: {expected}\n", running.admin), "{arguments:?}");
    }
}

#[test]
fn the_wrong_surface_is_told_apart() {
    let running = Served::start(PER_USER);
    let (code, _, said) = running.tidegate(&["top", "--admin", &running.http]);
    assert_eq!(code, 2);
    assert!(said.contains(&running.http) && said.contains("There is nothing here"), "{said}");
}

#[test]
fn who_does_not_answer_is_not_waited_for() {
    // The system accepts for it, and nobody reads.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = silent.local_addr().expect("bound");
    for arguments in [
        &["check", "user=42", "--timeout", "100ms", "--server", &format!("http://{address}")][..],
        &["top", "--timeout", "100ms", "--admin", &format!("https://{address}")],
        &["check", "user=42", "--timeout", "100ms", "--store", &format!("redis://{address}/")],
    ] {
        let (code, printed, said) = tidegate(arguments);
        assert_eq!((code, printed.as_str()), (3, ""), "{said}");
        assert!(said.contains("has not answered within 100ms") || said.contains("no answer"), "{said}");
    }
}

#[test]
fn a_token_comes_from_a_file_and_its_lack_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, text) in [("read", "looks\n"), ("write", "changes\n"), ("wrong", "guessed\n"), ("lines", "one\ntwo\n")] {
        fs::write(folder.path().join(name), text).expect("a file");
    }
    let file = format!("[admin]\nread_token_file = \"read\"\nwrite_token_file = \"write\"\n{PER_USER}");
    fs::write(folder.path().join("tidegate.toml"), file).expect("a file");
    let running = Served::start_in(folder);
    let look = |more: &[&str]| running.tidegate(&[&["policies"], more].concat());
    let change = |more: &[&str]| running.tidegate(&[&["reset", "user=42"], more].concat());
    assert_eq!(look(&["--token-file", "read"]).0, 0);
    assert_eq!(look(&["--token-file", "write"]).0, 0);
    assert_eq!(change(&["--token-file", "write"]).0, 0);
    assert_eq!(ended(running.command().arg("policies").env("TIDEGATE_TOKEN_FILE", "read")).0, 0);
    for ((code, printed, said), word, expected) in [
        (look(&[]), "asks for a token", 3),
        (look(&["--token-file", "wrong"]), "does not know the token", 3),
        (change(&["--token-file", "read"]), "write_token_file", 3),
        (look(&["--token-file", "lines"]), "not a token", 2),
        (look(&["--token-file", "read", "--admin", "http://203.0.113.7:9090"]), "https://", 2),
    ] {
        assert_eq!((code, printed.as_str()), (expected, ""), "{said}");
        assert!(said.contains(word) && (said.contains("--token-file") || word == "https://"), "{said}");
        assert!(!said.contains("looks") && !said.contains("guessed") && !said.contains("two"), "{said}");
    }
}

/// A server with TLS, and its certificate in the file `cert`.
fn with_tls(is_ca: IsCa) -> Served {
    let folder = tempfile::tempdir().expect("a folder");
    let key = KeyPair::generate().expect("a key");
    let mut certificate = CertificateParams::new(["127.0.0.1".to_owned()]).expect("names");
    certificate.is_ca = is_ca;
    let certificate = certificate.self_signed(&key).expect("signed");
    let texts = [("cert", certificate.pem()), ("key", key.serialize_pem()), ("token", "t".to_owned())];
    for (name, text) in texts {
        fs::write(folder.path().join(name), text).expect("a file");
    }
    let admin = "[admin]\ncert_file = \"cert\"\nkey_file = \"key\"\nwrite_token_file = \"token\"\n";
    fs::write(folder.path().join("tidegate.toml"), format!("{admin}{PER_USER}")).expect("a file");
    Served::start_in(folder)
}

#[test]
fn the_certificate_of_an_authority_is_no_servers() {
    let running = with_tls(IsCa::Ca(BasicConstraints::Unconstrained));
    let (code, _, said) = running.tidegate(&["reset", "user=42", "--token-file", "token", "--ca", "cert"]);
    assert_eq!(code, 3);
    assert!(said.contains("basicConstraints=CA:FALSE"), "{said}");
}

#[test]
fn a_server_with_tls_is_believed_by_its_certificate() {
    let running = with_tls(IsCa::NoCa);
    assert!(running.admin.starts_with("https://127.0.0.1:"), "{}", running.admin);
    let reset = |more: &[&str]| running.tidegate(&[&["reset", "user=42", "--token-file", "token"], more].concat());
    assert_eq!(reset(&["--ca", "cert"]).0, 0);
    let mut with_variable = running.command();
    assert_eq!(ended(with_variable.args(["reset", "user=42", "--token-file", "token"]).env("TIDEGATE_CA_FILE", "cert")).0, 0);
    // The machine does not know it.
    let (code, _, said) = reset(&[]);
    assert_eq!(code, 3);
    assert!(said.contains("does not prove") && said.contains("--ca FILE names whom to believe"), "{said}");
    // Nor does who has the certificate of another.
    let other =
        CertificateParams::new(["127.0.0.1".to_owned()]).expect("names").self_signed(&KeyPair::generate().expect("a key"));
    fs::write(running.folder.path().join("other"), other.expect("signed").pem()).expect("a file");
    let (code, _, said) = reset(&["--ca", "other"]);
    assert_eq!(code, 3);
    assert!(said.contains("does not prove") && said.contains("the certificates in other are not its"), "{said}");
    let (code, _, said) = reset(&["--ca", "cert", "--admin", &running.http.replace("http://", "https://")]);
    assert_eq!(code, 3);
    assert!(said.contains("does not speak TLS; write http://"), "{said}");
    let plain = running.admin.replace("https://", "http://");
    assert_eq!(reset(&["--admin", &plain]).0, 3);
    let localhost = running.admin.replace("127.0.0.1", "localhost");
    assert_eq!(reset(&["--ca", "cert", "--admin", &localhost]).0, 3, "another name than the certificate's");
}

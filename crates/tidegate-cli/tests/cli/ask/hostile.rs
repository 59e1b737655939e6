//! Servers that mean harm to who asks them.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpListener,
    thread,
};

use super::tidegate;

/// The address of a server that answers everything so.
fn answering(status: &'static str, body: impl Into<Vec<u8>>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = format!("http://{}", listener.local_addr().expect("bound"));
    let body = body.into();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.expect("accepted"));
            let (mut line, mut length) = (String::new(), 0);
            while stream.read_line(&mut line).is_ok_and(|read| read > 2) {
                length = line.strip_prefix("content-length: ").map_or(length, |length| length.trim().parse().expect("one"));
                line.clear();
            }
            // All of it: a connection that is closed with something unread takes the answer with it.
            let _ = stream.read_exact(&mut vec![0; length]);
            let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n", body.len());
            let _ = stream.get_mut().write_all(&[head.as_bytes(), &body].concat());
        }
    });
    address
}

/// Clears the screen, in three ways, turns the writing direction, and goes to a line of its own.
const EVIL: &str = "\\u001b[2J\\u009b2J\u{9b}2J\u{7f}\u{202e}\\n\\r";

fn is_harmless(printed: &str) -> bool {
    printed.chars().all(|c| c == '\n' || !(c.is_control() || c == '\u{202e}'))
}

#[test]
fn what_would_steer_a_terminal_is_escaped() {
    let outcome = format!(
        r#"{{"policy":"{EVIL}","key":"{EVIL}","allowed":true,"shadow":false,"limit":1,"remaining":1,"charged":1,"retry_after_ms":0,"reset_after_ms":0,"source":"{EVIL}"}}"#
    );
    let table = format!(
        r#"{{"name":"{EVIL}","quota":"{EVIL}","key":["{EVIL}"],"algorithm":"{EVIL}","mode":"{EVIL}","match":{{"{EVIL}":"a"}}}}"#
    );
    for (arguments, body) in [
        (&["check"][..], format!(r#"{{"allowed":false,"policy":"{EVIL}","limit":1,"retry_after_ms":1,"outcomes":[{outcome}]}}"#)),
        (&["reset", "a=b"], format!(r#"{{"keys":[{{"policy":"{EVIL}","key":"{EVIL}","limit":1,"remaining":1}}]}}"#)),
        (
            &["inspect", "a"],
            format!(
                r#"{{"policy":"{EVIL}","key":"{EVIL}","algorithm":"{EVIL}","fields":{{"{EVIL}":1}},"entries":[{{"at_us":18446744073709551615,"cost":1}}],"lasts_ms":1}}"#
            ),
        ),
        (&["top"], format!(r#"{{"policies":[{{"policy":"{EVIL}","keys":[{{"key":"{EVIL}","denied":1}}]}}]}}"#)),
        (
            &["denials"],
            format!(
                r#"{{"denials":[{{"time":"{EVIL}","front_end":"{EVIL}","policy":"{EVIL}","reason":"{EVIL}","key":"{EVIL}","attributes":{{"{EVIL}":"{EVIL}"}},"cost":1,"used":1,"limit":1,"retry_after_ms":null,"source":"{EVIL}"}}]}}"#
            ),
        ),
        (&["policies"], format!(r#"{{"policies":[{table}]}}"#)),
    ] {
        let address = answering("200 OK", body);
        let flag = if arguments[0] == "check" { "--server" } else { "--admin" };
        for more in [&[flag, &address][..], &[flag, &address, "--json"]] {
            let (code, printed, said) = tidegate(&[arguments, more].concat());
            assert_eq!((code, said.as_str()), (i32::from(arguments[0] == "check"), ""), "{arguments:?}");
            assert!(is_harmless(&printed) && printed.contains("2J"), "{printed:?}");
            assert!(more.len() == 2 || printed.lines().count() == 1, "{printed}");
        }
    }
}

#[test]
fn refusals_are_escaped_too() {
    let problem = format!(r#"{{"detail":"{EVIL}","field":"{EVIL}"}}"#);
    for (status, expected) in [("400 No", 2), ("403 No", 3), ("404 No", 2), ("418 No", 3), ("503 No", 3)] {
        let (code, printed, said) = tidegate(&["check", "--server", &answering(status, problem.as_str())]);
        assert_eq!((code, printed.as_str()), (expected, ""), "{said}");
        assert!(is_harmless(&said) && said.contains("2J"), "{said:?}");
    }
}

#[test]
fn what_is_no_answer_of_ours_is_none() {
    let page = "<html>\u{1b}[2J</html>";
    let bodies: [&[u8]; 6] = [b"", page.as_bytes(), b"{}", b"[]", b"{\"allowed\":\"yes\",\"outcomes\":[]}", b"\xff\xfe"];
    for body in bodies {
        for status in ["200 OK", "204 No", "302 Found", "429 No", "500 No"] {
            for flags in [&[][..], &["--json"]] {
                let address = answering(status, body);
                let (code, printed, said) = tidegate(&[&["check", "--server", &address], flags].concat());
                assert_eq!((code, printed.as_str()), (3, ""), "{status} {body:?}: {said}");
                assert!(is_harmless(&said) && said.contains(&address), "{said:?}");
            }
        }
    }
}

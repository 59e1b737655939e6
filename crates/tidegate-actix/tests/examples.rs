//! The example is run as it is, and is asked over a socket.

use tidegate_testkit::Example;

#[test]
fn actix() {
    let example = Example::start("actix");
    let (a, b): (&[_], &[_]) = (&[("x-user", "a")], &[("x-user", "b")]);
    let (status, head, body) = example.get("/", a);
    assert_eq!(status, 200, "{head}");
    assert!(head.contains(r#"ratelimit: "per-user";r=2;t="#), "{head}");
    assert!(body.contains("allowed: policy `per-user` has 2 of 3 left"), "{body}");
    // Whichever worker is asked.
    assert_eq!(example.statuses("/", [a, a, a]), [200, 200, 429]);
    // The address has two left: what was denied has cost it nothing.
    assert_eq!(example.statuses("/", [b, b, b]), [200, 200, 429]);
    let (_, head, body) = example.get("/", b);
    assert!(head.contains("retry-after: ") && head.contains("application/problem+json"), "{head}");
    assert!(body.contains(r#""violated-policies":["per-address"]"#), "{body}");
}

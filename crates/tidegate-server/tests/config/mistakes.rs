//! Wrong files, and what is said of each.

use tidegate_server::config::parse;

#[test]
fn probe() {
    for text in [
        "[[policy]]\nname = \"a\"\nquotta = \"100/min\"",
        "[[policy]]\nname = \"a\"\nquota = \"100/fortnight\"\n[stor]\nurl=1\na=2\n[listen]\nhttp = 8080\ngrpc=\"x\"",
        "[[policy]]\nquota = \"100/min\"",
        "[[policy]]\nname = \"a\"\n\n[[policy]]\nname=\"b\"\nquota=\"1/s burst 2\"\n[[policy]]\nname=\"b\"\nquota=\"1/s\"\n[[policy]]\nname=\"b\"\nquota=\"1/s\"",
        "[[policy]]\nname = \"a\"\ncalendar = { limit = 5, per = \"month\", zone = \"Berlin\" }",
        "[[policy]]\nname = \"a\"\ncalendar = { limit = 5, per = \"moth\" }",
        "[[policy]]\nname = \"a\"\ncalendar = { limit = 5, per = \"day\" }\nalgorithm = \"gcra\"",
        "[[policy]]\nname = \"a\"\nconcurrency = { limit = 5, ttl = \"0s\" }",
        "[[policy]]\nname = \"a\"\nconcurrency = { limit = 5 }",
        "[[policy]]\nname = \"a\"\nquota = \"1/s\"\nblocked = [[\"a\", \"b\"]]",
        "[[policy]]\nname = \"a\"\nquota = \"1/s\"\nmatch = { ip = { network = \"x\" } }",
        "[[policy]]\nname = \"a\"\nquota = \"1/s\"\nmatch = { ip = { net = \"x\" } }",
        "[[policy]]\nname = \"a\"\nquota = \"1/s\"\nmatch = { ip = 7 }",
        "[[policy]]\nname = \"a\"\nquota = \"1/s\"\nresolution = -1\nalgorithm=\"sliding-windo\"",
        "[[policy]\nname = \"a\"\n",
        "[store]\nurl = \"memory\nb = 1\n",
        "[store]\nurl = \"memory\"\nurl = \"memory\"\n",
        "[store]\nurl = \"redsi://:hunter2@host/\"\ninstances = 0\nmax_keys=\"many\"",
        "[forward_auth]\nattributes = { ip = \"addres\" }\n[log]\nlevel = \"verbose\"",
        "[policy]\nname = \"a\"\n",
        "policy = 3\nstore = 4",
        "[admin]\nallowed_hosts = \"x\"\nread_token_file=4\n[decision_log]\nhash_keys=\"yes\"\nsample_rate=\"a\"",
    ] {
        println!("-----\n{text}\n=>\n{}", parse(text).map_or_else(|e| e.to_string(), |_| "OK".to_owned()));
    }
}

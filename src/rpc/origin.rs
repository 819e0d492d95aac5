//! Origins of pages, as browsers name them.
//!
//! A browser sends the origin of a page in one spelling, and it is compared as text: an entry in any other spelling would
//! never match, and a page would be refused for no visible reason. So such an entry is refused when the server starts.

/// What is wrong with an entry of the list of origins that may call; nothing with `*`.
pub fn check(origin: &str) -> Result<(), &'static str> {
    if origin == "*" {
        return Ok(());
    }
    let is_plain = |c: u8| c.is_ascii_graphic() && !c.is_ascii_uppercase() && !b"\"'`,<>\\".contains(&c);
    if !origin.bytes().all(is_plain) {
        return Err("must be lower case, without spaces, in ASCII (xn-- for other letters)");
    }
    let Some((scheme, place)) = origin.split_once("://") else {
        return Err("must be like https://page.example, or * for any");
    };
    let is_of_scheme = |c: u8| c.is_ascii_alphanumeric() || b"+-.".contains(&c);
    if !scheme.starts_with(|c: char| c.is_ascii_lowercase()) || !scheme.bytes().all(is_of_scheme) {
        return Err("must be like https://page.example, or * for any");
    }
    if place.contains(['/', '?', '#', '@', '*']) {
        return Err("must end with the host or its port: no path, not even /, no user and no pattern");
    }
    check_place(scheme, place)
}

fn check_place(scheme: &str, place: &str) -> Result<(), &'static str> {
    // An address of IPv6 has colons of its own.
    let end = place.rfind(']').map(|bracket| bracket + 1).or_else(|| place.find(':')).unwrap_or(place.len());
    let (host, rest) = place.split_at(end);
    if host.is_empty() {
        return Err("has no host");
    }
    let Some(port) = rest.strip_prefix(':') else {
        return if rest.is_empty() { Ok(()) } else { Err("has something behind its host that is no port") };
    };
    match (scheme, port.parse::<u16>()) {
        (_, Err(_)) => Err("has a port that is no number below 65536"),
        ("http", Ok(80)) | ("https", Ok(443)) => Err("names the port that browsers leave out"),
        (_, Ok(_)) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn what_a_browser_would_send_is_taken_and_nothing_else() {
        for good in [
            "*",
            "https://page.example",
            "http://localhost:5173",
            "http://127.0.0.1:8080",
            "http://[::1]:8080",
            "http://[::1]",
            "https://xn--bcher-kva.example",
            "chrome-extension://abcdefghijklmnop",
            "http://a.example:443",
        ] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for bad in [
            "",
            "null",
            "page.example",
            "https://",
            "https://:443",
            "https://page.example/",
            "https://page.example/app",
            "https://Page.example",
            "HTTPS://page.example",
            "https://page.example:443",
            "http://page.example:80",
            "http://page.example:port",
            "http://page.example:65536",
            "http://page.example:",
            "http://[::1]x",
            "https://*.page.example",
            "https://user@page.example",
            "https://b\u{fc}cher.example",
            "https://page.example?",
            "https://a b",
            "://page.example",
            "1http://page.example",
        ] {
            assert!(check(bad).is_err(), "{bad}");
        }
    }
}

//! Rewrites a template before it is parsed, without changing its lines:
//! - line ends become "\n", as jinja2 does;
//! - `{% generation %}` and `{% endgeneration %}`, which the parser does not know, become an `if` that is true;
//! - list and dict literals become calls that make Python's list and dict (see `python.rs`);
//! - what is assigned goes through a call: to a variable, lazy sequences become lists; to an attribute of a
//!   namespace, what a namespace may hold is checked.

use std::borrow::Cow;

pub const MAKE_LIST: &str = "ganglion_list";
pub const MAKE_DICT: &str = "ganglion_dict";
pub const KEEP: &str = "ganglion_keep";
pub const EAGER: &str = "ganglion_eager";

/// The parser and what comes after it recurse once per operator of a chain, and once per elif; known templates stay
/// below a tenth of these.
const MAX_TOKENS: usize = 4_000;
const MAX_ELIFS: usize = 1_000;

/// Names that stand before a literal; after any other name a bracket is a subscript.
const OPERATORS: [&str; 8] = ["in", "not", "and", "or", "if", "else", "is", "return"];

/// Fails with a message that names the line.
pub fn rewrite(source: &str) -> Result<String, String> {
    let source = match source.contains('\r') {
        true => Cow::Owned(source.replace("\r\n", "\n").replace('\r', "\n")),
        false => Cow::Borrowed(source),
    };
    let mut rest: &str = &source;
    let mut out = String::with_capacity(source.len() + 256);
    let mut elifs = 0;
    while let Some(start) = find_tag(rest) {
        out.push_str(&rest[..start]);
        rest = &rest[start..];
        let length = match &rest[..2] {
            "{#" => rest.find("#}").map_or(rest.len(), |end| end + 2),
            "{{" => tag_length(rest, "}}"),
            _ => tag_length(rest, "%}"),
        };
        let tag = &rest[..length];
        let mut taken = length;
        match (&tag[..2], tag_name(tag)) {
            ("{#", _) => out.push_str(tag),
            ("{%", "raw") => {
                taken = raw_length(rest, length);
                out.push_str(&rest[..taken]);
            }
            ("{%", "generation") => out.push_str(&tag.replacen("generation", "if true", 1)),
            ("{%", "endgeneration") => out.push_str(&tag.replacen("endgeneration", "endif", 1)),
            (_, name) => {
                elifs += usize::from(name == "elif");
                if rewrite_tag(&mut out, tag) > MAX_TOKENS || elifs > MAX_ELIFS {
                    let line = out.matches('\n').count() + 1;
                    return Err(format!(
                        "line {line}: more than {MAX_TOKENS} words in a tag or {MAX_ELIFS} elifs"
                    ));
                }
            }
        }
        rest = &rest[taken..];
    }
    out.push_str(rest);
    Ok(out)
}

fn find_tag(text: &str) -> Option<usize> {
    text.as_bytes().windows(2).position(|pair| matches!(pair, b"{{" | b"{%" | b"{#"))
}

/// The bytes of a tag with its closing mark; of all that is left where it has none (the parser will complain).
fn tag_length(text: &str, closing: &str) -> usize {
    let mut depth = 0usize;
    let mut at = 2;
    while at < text.len() {
        let byte = text.as_bytes()[at];
        if depth == 0 && text.as_bytes()[at..].starts_with(closing.as_bytes()) {
            return at + 2;
        }
        match byte {
            b'\'' | b'"' => at += string_length(&text.as_bytes()[at..]) - 1,
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        at += 1;
    }
    text.len()
}

/// Of the string literal that `bytes` begin with, quotes included.
fn string_length(bytes: &[u8]) -> usize {
    let mut at = 1;
    while at < bytes.len() && bytes[at] != bytes[0] {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(bytes.len())
}

fn tag_name(tag: &str) -> &str {
    let body = tag[2..].trim_start_matches(['-', '+']).trim_start();
    &body[..body.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(body.len())]
}

/// From a raw tag of `tag_length` bytes through its end tag.
fn raw_length(text: &str, tag_length: usize) -> usize {
    let mut at = tag_length;
    while let Some(found) = text[at..].find("{%") {
        at += found;
        let end = text[at..].find("%}").map_or(text.len(), |end| at + end + 2);
        if tag_name(&text[at..]) == "endraw" {
            return end;
        }
        at += 2;
    }
    text.len()
}

/// What a bracket closes.
enum Open {
    List,
    Dict,
    Other,
}

/// Where the closing mark begins, with its whitespace control.
fn body_end(tag: &str) -> usize {
    let closed = tag.strip_suffix("%}").or(tag.strip_suffix("}}")).unwrap_or(tag);
    closed.strip_suffix(['-', '+']).unwrap_or(closed).len().max(2)
}

/// Returns the number of tokens.
fn rewrite_tag(out: &mut String, tag: &str) -> usize {
    let (body, closing) = tag.split_at(body_end(tag));
    let bytes = body.as_bytes();
    let mut open: Vec<Open> = Vec::new();
    let mut after_operand = false;
    let mut tokens = 0;
    let is_set = tag.starts_with("{%") && tag_name(tag) == "set";
    let (mut dotted, mut assigned) = (false, false);
    let mut at = 2;
    out.push_str(&body[..2]);
    while at < bytes.len() {
        let length = match bytes[at] {
            b'\'' | b'"' => string_length(&bytes[at..]),
            byte if is_name(byte) => bytes[at..].iter().take_while(|byte| is_name(**byte)).count(),
            _ => body[at..].chars().next().map_or(1, char::len_utf8),
        };
        let token = &body[at..at + length];
        match token {
            "[" if !after_operand => {
                open.push(Open::List);
                out.extend([MAKE_LIST, "(["]);
            }
            "{" if !after_operand => {
                open.push(Open::Dict);
                out.extend([MAKE_DICT, "({"]);
            }
            "(" | "[" | "{" => {
                open.push(Open::Other);
                out.push_str(token);
            }
            ")" | "]" | "}" => {
                out.push_str(token);
                if matches!(open.pop(), Some(Open::List | Open::Dict)) {
                    out.push(')');
                }
            }
            "=" if is_set && !assigned && open.is_empty() => {
                assigned = true;
                // Double parentheses: "a, b" is one tuple.
                out.extend(["=", if dotted { KEEP } else { EAGER }, "(("]);
            }
            _ => out.push_str(token),
        }
        if !token.trim().is_empty() {
            tokens += 1;
            dotted |= token == ".";
            let names = is_name(bytes[at]) && !OPERATORS.contains(&token);
            after_operand = names || matches!(bytes[at], b'\'' | b'"' | b')' | b']' | b'}');
        }
        at += length;
    }
    out.push_str(if assigned { "))" } else { "" });
    out.push_str(closing);
    tokens
}

fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

//! Rewrites a template before it is parsed, without changing its lines:
//! - line ends become "\n", as jinja2 does;
//! - `{% generation %}` and `{% endgeneration %}`, which the parser does not know, become an `if` that is true;
//! - list and dict literals become calls that make Python's list and dict (see `python.rs`).

use std::borrow::Cow;

pub const MAKE_LIST: &str = "ganglion_list";
pub const MAKE_DICT: &str = "ganglion_dict";

/// Names that stand before a literal; after any other name a bracket is a subscript.
const OPERATORS: [&str; 8] = ["in", "not", "and", "or", "if", "else", "is", "return"];

pub fn rewrite(source: &str) -> String {
    let source = match source.contains('\r') {
        true => Cow::Owned(source.replace("\r\n", "\n").replace('\r', "\n")),
        false => Cow::Borrowed(source),
    };
    let mut rest: &str = &source;
    let mut out = String::with_capacity(source.len() + 256);
    while let Some(start) = find_tag(rest) {
        out.push_str(&rest[..start]);
        rest = &rest[start..];
        let length = match &rest[..2] {
            "{#" => rest.find("#}").map_or(rest.len(), |end| end + 2),
            opening => {
                let closing = if opening == "{{" { "}}" } else { "%}" };
                let length = tag_length(rest, closing);
                let tag = &rest[..length];
                match tag_name(tag) {
                    "raw" if opening == "{%" => raw_length(rest, length),
                    "generation" if opening == "{%" => {
                        out.push_str(&tag.replacen("generation", "if true", 1));
                        rest = &rest[length..];
                        continue;
                    }
                    "endgeneration" if opening == "{%" => {
                        out.push_str(&tag.replacen("endgeneration", "endif", 1));
                        rest = &rest[length..];
                        continue;
                    }
                    _ => {
                        rewrite_literals(&mut out, tag);
                        rest = &rest[length..];
                        continue;
                    }
                }
            }
        };
        out.push_str(&rest[..length]);
        rest = &rest[length..];
    }
    out.push_str(rest);
    out
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

fn rewrite_literals(out: &mut String, tag: &str) {
    let (opening, inner) = tag.split_at(2);
    out.push_str(opening);
    let bytes = inner.as_bytes();
    let mut open: Vec<Open> = Vec::new();
    let mut after_operand = false;
    let mut at = 0;
    while at < bytes.len() {
        let length = match bytes[at] {
            b'\'' | b'"' => string_length(&bytes[at..]),
            byte if is_name(byte) => bytes[at..].iter().take_while(|byte| is_name(**byte)).count(),
            _ => inner[at..].chars().next().map_or(1, char::len_utf8),
        };
        let token = &inner[at..at + length];
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
            _ => out.push_str(token),
        }
        if !token.trim().is_empty() {
            let names = is_name(bytes[at]) && !OPERATORS.contains(&token);
            after_operand = names || matches!(bytes[at], b'\'' | b'"' | b')' | b']' | b'}');
        }
        at += length;
    }
}

fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

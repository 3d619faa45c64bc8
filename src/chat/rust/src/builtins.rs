//! Filters, tests and methods where minijinja differs from jinja2 and Python.

use crate::python::{adopt, display, split_lines, Dict, List};
use crate::source::{EAGER, KEEP, MAKE_DICT, MAKE_LIST};
use crate::tojson::tojson;
use minijinja::value::{from_args, Kwargs, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State};
use minijinja_contrib::pycompat::unknown_method_callback;

pub fn install(env: &mut Environment) {
    env.set_formatter(|out, _, value| match (value.as_str(), value.kind()) {
        (Some(text), _) => out.write_str(text).map_err(Error::from),
        (_, ValueKind::Invalid) => Err(Error::new(ErrorKind::InvalidOperation, value.to_string())),
        _ => out.write_str(&display(value)).map_err(Error::from),
    });
    env.set_unknown_method_callback(method);
    env.add_filter("tojson", tojson);
    env.add_filter("string", |value: &Value| Value::from(display(value)));
    env.add_filter("indent", indent);
    env.add_filter("length", length);
    env.add_filter("count", length);
    env.add_filter("items", items);
    env.add_filter("join", join);
    env.add_filter("list", List::of);
    env.add_test("iterable", |value: &Value| {
        !matches!(value.kind(), ValueKind::None | ValueKind::Bool | ValueKind::Number | ValueKind::Plain)
    });
    env.add_test("sequence", |value: &Value| {
        use ValueKind::{Iterable, Map, Seq, String, Undefined};
        matches!(value.kind(), Iterable | Map | Seq | String | Undefined)
    });
    env.add_test("number", |value: &Value| matches!(value.kind(), ValueKind::Number | ValueKind::Bool));
    env.add_function(MAKE_LIST, List::of);
    env.add_function(MAKE_DICT, Dict::of);
    env.add_function(KEEP, adopt);
    env.add_function(EAGER, eager);
    env.add_function("namespace", |value: Option<Value>| match value {
        Some(value) => minijinja::functions::namespace(Some(Dict::of(&value)?)),
        None => minijinja::functions::namespace(None),
    });
    env.remove_global("debug");
}

/// A slice is a list of its own at once, as in Python.
fn eager(value: Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Iterable => List::of(&value),
        _ => Ok(value),
    }
}

/// Python's len(): 0 for what is undefined.
fn length(value: &Value) -> Result<usize, Error> {
    match value.kind() {
        ValueKind::Undefined => Ok(0),
        kind => value.len().ok_or_else(|| {
            Error::new(ErrorKind::InvalidOperation, format!("a value of type {kind} has no length"))
        }),
    }
}

fn items(value: &Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Undefined => Ok(List::value(Vec::new())),
        _ => minijinja::filters::items(value),
    }
}

/// As jinja2: every line but the first; empty lines only if `blank`; a final newline stays.
fn indent(
    text: &Value,
    width: Option<Value>,
    first: Option<bool>,
    blank: Option<bool>,
    kwargs: Kwargs,
) -> Result<String, Error> {
    let flag = |name, positional: Option<bool>| {
        Ok::<_, Error>(kwargs.get::<Option<bool>>(name)?.or(positional).unwrap_or(false))
    };
    let (first, blank) = (flag("first", first)?, flag("blank", blank)?);
    let width = kwargs.get::<Option<Value>>("width")?.or(width).unwrap_or_else(|| Value::from(4));
    kwargs.assert_all_used()?;
    let prefix = match width.as_str() {
        Some(prefix) => prefix.to_string(),
        None => " ".repeat(usize::try_from(width)?.min(1024)),
    };
    let text = display(text) + "\n";
    let mut out = String::new();
    for (index, line) in split_lines(&text).into_iter().enumerate() {
        if index > 0 {
            out.push('\n');
        }
        let indented = if index == 0 { first } else { blank || !line.is_empty() };
        out.push_str(if indented { &prefix } else { "" });
        out.push_str(line);
    }
    Ok(out)
}

/// As jinja2, with items written as Python writes them.
fn join(value: &Value, separator: Option<&str>, kwargs: Kwargs) -> Result<String, Error> {
    let separator = kwargs.get::<Option<&str>>("d")?.or(separator).unwrap_or("");
    let attribute = kwargs.get::<Option<Value>>("attribute")?;
    kwargs.assert_all_used()?;
    let mut out = String::new();
    for (index, item) in value.try_iter()?.enumerate() {
        out.push_str(if index > 0 { separator } else { "" });
        match &attribute {
            Some(attribute) => out.push_str(&display(&item.get_item(attribute)?)),
            None => out.push_str(&display(&item)),
        }
    }
    Ok(out)
}

fn method(state: &State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    match value.as_str() {
        Some(text) => match string_method(text, name, args) {
            Err(error) if error.kind() == ErrorKind::UnknownMethod => {
                unknown_method_callback(state, value, name, args)
            }
            result => result,
        },
        None => unknown_method_callback(state, value, name, args),
    }
}

/// Methods that the library lacks, counts in bytes, or does not end.
fn string_method(text: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
    match name {
        "count" => {
            let (part,): (&str,) = from_args(args)?;
            Ok(Value::from(text.matches(part).count()))
        }
        "find" | "rfind" => {
            let (part,): (&str,) = from_args(args)?;
            let found = if name == "find" { text.find(part) } else { text.rfind(part) };
            Ok(Value::from(found.map_or(-1, |byte| text[..byte].chars().count() as i64)))
        }
        "removeprefix" => {
            let (part,): (&str,) = from_args(args)?;
            Ok(Value::from(text.strip_prefix(part).unwrap_or(text)))
        }
        "removesuffix" => {
            let (part,): (&str,) = from_args(args)?;
            Ok(Value::from(text.strip_suffix(part).unwrap_or(text)))
        }
        "rsplit" => {
            let (part, most): (&str, Option<usize>) = from_args(args)?;
            let mut parts: Vec<Value> =
                text.rsplitn(most.map_or(usize::MAX, |n| n + 1), part).map(Value::from).collect();
            parts.reverse();
            Ok(List::value(parts))
        }
        "join" => {
            let (items,): (&Value,) = from_args(args)?;
            let items: Vec<String> = items.try_iter()?.map(|item| display(&item)).collect();
            Ok(Value::from(items.join(text)))
        }
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

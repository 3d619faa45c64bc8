//! The filter `tojson` as transformers defines it: Python's `json.dumps`.

use crate::python::{float, MAX_DEPTH, MAX_TEXT};
use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind};
use std::fmt::Write;

struct Style {
    ensure_ascii: bool,
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
}

/// `tojson(ensure_ascii=false, indent=none, separators=none, sort_keys=false)`
pub fn tojson(value: &Value, ensure_ascii: Option<bool>, kwargs: Kwargs) -> Result<Value, Error> {
    let flag = |name| kwargs.get::<Option<bool>>(name);
    let indent = match kwargs.get::<Option<Value>>("indent")? {
        Some(value) if value.as_str().is_some() => value.as_str().map(str::to_string),
        Some(value) if !value.is_none() => Some(" ".repeat(usize::try_from(value).unwrap_or(0).min(64))),
        _ => None,
    };
    let separators = kwargs.get::<Option<Vec<String>>>("separators")?;
    let (item_separator, key_separator) = match separators.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => return Err(Error::new(ErrorKind::InvalidOperation, "tojson: separators must be two")),
        None => (if indent.is_some() { "," } else { ", " }.into(), ": ".into()),
    };
    let style = Style {
        ensure_ascii: flag("ensure_ascii")?.or(ensure_ascii).unwrap_or(false),
        sort_keys: flag("sort_keys")?.unwrap_or(false),
        indent,
        item_separator,
        key_separator,
    };
    kwargs.assert_all_used()?;
    let mut out = String::new();
    style.write(&mut out, value, 0)?;
    Ok(Value::from(out))
}

impl Style {
    fn write(&self, out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(Error::new(ErrorKind::BadSerialization, "tojson: nested too deeply"));
        }
        if out.len() > MAX_TEXT {
            return Err(Error::new(ErrorKind::OutOfFuel, "tojson: a text that is too long"));
        }
        match value.kind() {
            ValueKind::None | ValueKind::Bool | ValueKind::Number => out.push_str(&scalar(value)),
            ValueKind::String => self.write_string(out, value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                out.push('[');
                let mut count = 0;
                for item in value.try_iter()? {
                    self.start_item(out, count, depth);
                    self.write(out, &item, depth + 1)?;
                    count += 1;
                }
                self.end_items(out, count, depth);
                out.push(']');
            }
            ValueKind::Map => self.write_map(out, value, depth)?,
            kind => {
                let message = format!("tojson: a value of type {kind} has no JSON form");
                return Err(Error::new(ErrorKind::BadSerialization, message));
            }
        }
        Ok(())
    }

    fn write_map(&self, out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
        let pairs = value.as_object().and_then(|object| object.try_iter_pairs());
        let mut pairs: Vec<_> = pairs.into_iter().flatten().collect();
        if self.sort_keys {
            pairs.sort_by(|a, b| a.0.cmp(&b.0));
        }
        out.push('{');
        for (index, (key, item)) in pairs.iter().enumerate() {
            self.start_item(out, index, depth);
            match key.as_str() {
                Some(key) => self.write_string(out, key),
                None => self.write_string(out, &scalar(key)),
            }
            out.push_str(&self.key_separator);
            self.write(out, item, depth + 1)?;
        }
        self.end_items(out, pairs.len(), depth);
        out.push('}');
        Ok(())
    }

    fn start_item(&self, out: &mut String, index: usize, depth: usize) {
        if index > 0 {
            out.push_str(&self.item_separator);
        }
        self.new_line(out, depth + 1);
    }

    fn end_items(&self, out: &mut String, count: usize, depth: usize) {
        if count > 0 {
            self.new_line(out, depth);
        }
    }

    fn new_line(&self, out: &mut String, depth: usize) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            out.push_str(&indent.repeat(depth));
        }
    }

    fn write_string(&self, out: &mut String, text: &str) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\x08' => out.push_str("\\b"),
                '\x0c' => out.push_str("\\f"),
                _ if c < ' ' || (self.ensure_ascii && !(' '..='~').contains(&c)) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                _ => out.push(c),
            }
        }
        out.push('"');
    }
}

fn scalar(value: &Value) -> String {
    match value.kind() {
        ValueKind::None => "null".into(),
        ValueKind::Bool => if value.is_true() { "true" } else { "false" }.into(),
        ValueKind::Number if !value.is_integer() => match f64::try_from(value.clone()) {
            Ok(number) if number.is_nan() => "NaN".into(),
            Ok(number) if number.is_infinite() => if number > 0.0 { "Infinity" } else { "-Infinity" }.into(),
            Ok(number) => float(number),
            Err(_) => value.to_string(),
        },
        _ => value.to_string(),
    }
}

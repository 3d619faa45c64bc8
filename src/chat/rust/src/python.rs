//! Lists and dicts that behave and print as Python's, because templates are written for it.

use indexmap::IndexMap;
use minijinja::value::{from_args, DynObject, Enumerator, Object, ObjectRepr, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};
use std::cell::Cell;
use std::cmp::Ordering;
use std::fmt::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard};

/// A template that lets a list grow to more is taken for a runaway.
const MAX_LIST: usize = 1 << 20;
/// Lists and dicts put into others by one rendering: the depth of a value, and with it the stack that comparing or
/// freeing it takes, cannot be more.
const MAX_KEPT: usize = 50_000;
/// Values looked at by one comparison or search; lists that share parts can stand for far more than they hold.
const MAX_VISITED: usize = 1 << 20;
/// Deeper values print as "..."; JSON from a request cannot be so deep.
pub const MAX_DEPTH: usize = 200;
pub const MAX_TEXT: usize = 16 << 20;

thread_local! {
    /// Of this rendering, which has its own thread.
    static KEPT: Cell<usize> = const { Cell::new(0) };
}

fn runaway<T>(message: String) -> Result<T, Error> {
    Err(Error::new(ErrorKind::OutOfFuel, message))
}

/// The value as a list, dict or namespace may hold it: scalars and our own lists and dicts, so that nothing holds
/// itself by a detour and nothing lazy piles up.
pub fn adopt(value: Value) -> Result<Value, Error> {
    adopt_at(value, 0)
}

fn adopt_at(value: Value, depth: usize) -> Result<Value, Error> {
    let Some(object) = value.as_object() else {
        return Ok(value);
    };
    if object.downcast_ref::<List>().is_some() || object.downcast_ref::<Dict>().is_some() {
        return Ok(value);
    }
    if depth > MAX_DEPTH {
        return runaway(format!("a value nested more than {MAX_DEPTH} deep"));
    }
    match object.repr() {
        ObjectRepr::Map if !object.type_name().ends_with("::Namespace") => Dict::adopting(&value, depth),
        ObjectRepr::Seq | ObjectRepr::Iterable => List::adopting(&value, depth),
        _ => Err(Error::new(
            ErrorKind::InvalidOperation,
            "a namespace or macro cannot be kept in another value",
        )),
    }
}

/// To be called for every value that is put into another.
fn count_kept(value: &Value) -> Result<(), Error> {
    let kept = KEPT.with(|kept| kept.replace(kept.get() + usize::from(value.as_object().is_some())));
    if kept < MAX_KEPT {
        return Ok(());
    }
    runaway(format!("more than {MAX_KEPT} lists and dicts put into others"))
}

/// A list that can grow: some templates append to it, as Python allows. Holds what `adopt` lets through.
#[derive(Debug)]
pub struct List(Mutex<Vec<Value>>);

impl List {
    /// Requires: items that were adopted.
    pub fn value(items: Vec<Value>) -> Value {
        Value::from_object(List(Mutex::new(items)))
    }

    /// A new list of the items of `value`.
    pub fn of(value: &Value) -> Result<Value, Error> {
        List::adopting(value, 0)
    }

    fn adopting(value: &Value, depth: usize) -> Result<Value, Error> {
        let items: Vec<_> = value.try_iter()?.take(MAX_LIST).collect();
        // One new list makes a value one deeper, however many it holds.
        items.iter().find(|item| item.as_object().is_some()).map_or(Ok(()), count_kept)?;
        let items = items.into_iter().map(|item| adopt_at(item, depth + 1));
        Ok(List::value(items.collect::<Result<_, Error>>()?))
    }

    fn items(&self) -> MutexGuard<'_, Vec<Value>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn insert(self: &Arc<Self>, index: usize, added: Vec<Value>) -> Result<Value, Error> {
        if self.items().len() + added.len() > MAX_LIST {
            return runaway(format!("a list of more than {MAX_LIST} items"));
        }
        let added: Vec<Value> = added.into_iter().map(adopt).collect::<Result<_, Error>>()?;
        added.iter().find(|item| item.as_object().is_some()).map_or(Ok(()), count_kept)?;
        let mut budget = MAX_VISITED;
        if added.iter().any(|value| holds(value, self, &mut budget)) {
            return Err(Error::new(ErrorKind::InvalidOperation, "a list cannot contain itself"));
        }
        let mut items = self.items();
        let index = index.min(items.len());
        items.splice(index..index, added);
        Ok(Value::from(()))
    }

    /// Python's meaning of a negative index, clamped.
    fn position(&self, index: i64) -> usize {
        let length = self.items().len() as i64;
        let from_start = if index < 0 { index + length } else { index };
        from_start.clamp(0, length) as usize
    }

    fn pop(&self, index: Option<i64>) -> Result<Value, Error> {
        let index = index.unwrap_or(-1);
        let mut items = self.items();
        let length = items.len() as i64;
        let from_start = if index < 0 { index + length } else { index };
        if !(0..length).contains(&from_start) {
            return Err(Error::new(ErrorKind::InvalidOperation, "pop index out of range"));
        }
        Ok(items.remove(from_start as usize))
    }
}

/// Whether `list` is reachable from `value`, or might be: the search gives up when the budget is spent.
fn holds(value: &Value, list: &Arc<List>, budget: &mut usize) -> bool {
    if value.as_object().is_none() {
        return false;
    }
    *budget = budget.saturating_sub(1);
    if *budget == 0 {
        return true;
    }
    if let Some(other) = value.downcast_object::<List>() {
        let items = other.items().clone();
        return Arc::ptr_eq(&other, list) || items.iter().any(|item| holds(item, list, budget));
    }
    value
        .downcast_object_ref::<Dict>()
        .is_some_and(|dict| dict.0.values().any(|item| holds(item, list, budget)))
}

/// Lexicographic; dicts are equal or not. A comparison that takes too long finds them unequal.
fn compare(a: &Value, b: &Value, budget: &mut usize) -> Ordering {
    *budget = budget.saturating_sub(1);
    if *budget == 0 {
        return Ordering::Less;
    }
    if let (Some(a), Some(b)) = (a.downcast_object::<List>(), b.downcast_object::<List>()) {
        if Arc::ptr_eq(&a, &b) {
            return Ordering::Equal;
        }
        let (a, b) = (a.items().clone(), b.items().clone());
        let unequal = a.iter().zip(&b).map(|(a, b)| compare(a, b, budget)).find(|order| order.is_ne());
        return unequal.unwrap_or(a.len().cmp(&b.len()));
    }
    if let (Some(a), Some(b)) = (a.downcast_object_ref::<Dict>(), b.downcast_object_ref::<Dict>()) {
        let mut same = |key, value| b.0.get(key).is_some_and(|other| compare(value, other, budget).is_eq());
        let equal = a.0.len() == b.0.len() && a.0.iter().all(|(key, value)| same(key, value));
        return if equal { Ordering::Equal } else { Ordering::Less };
    }
    a.cmp(b)
}

impl Object for List {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.items().get(key.as_usize()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.items().len())
    }

    fn call_method(self: &Arc<Self>, _: &State, method: &str, args: &[Value]) -> Result<Value, Error> {
        match method {
            "append" => {
                let (value,): (Value,) = from_args(args)?;
                self.insert(usize::MAX, vec![value])
            }
            "extend" => {
                let (values,): (Value,) = from_args(args)?;
                self.insert(usize::MAX, values.try_iter()?.take(MAX_LIST + 1).collect())
            }
            "insert" => {
                let (index, value): (i64, Value) = from_args(args)?;
                self.insert(self.position(index), vec![value])
            }
            "pop" => {
                let (index,): (Option<i64>,) = from_args(args)?;
                self.pop(index)
            }
            _ => Err(Error::from(ErrorKind::UnknownMethod)),
        }
    }

    fn custom_cmp(self: &Arc<Self>, other: &DynObject) -> Option<Ordering> {
        let (a, b) = (Value::from_dyn_object(self.clone()), Value::from(other.clone()));
        Some(compare(&a, &b, &mut { MAX_VISITED }))
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&repr(&Value::from_dyn_object(self.clone())))
    }
}

#[derive(Debug)]
pub struct Dict(IndexMap<Value, Value>);

impl Dict {
    /// A new dict of the pairs of `value`.
    pub fn of(value: &Value) -> Result<Value, Error> {
        Dict::adopting(value, 0)
    }

    fn adopting(value: &Value, depth: usize) -> Result<Value, Error> {
        let pairs = value.as_object().and_then(|object| object.try_iter_pairs());
        let pairs: Vec<_> = pairs.into_iter().flatten().collect();
        pairs
            .iter()
            .map(|(_, item)| item)
            .find(|item| item.as_object().is_some())
            .map_or(Ok(()), count_kept)?;
        let pairs = pairs.into_iter().map(|(key, item)| Ok((key, adopt_at(item, depth + 1)?)));
        Ok(Dict::value(pairs.collect::<Result<_, Error>>()?))
    }

    /// Requires: items that were adopted.
    pub fn value(items: IndexMap<Value, Value>) -> Value {
        Value::from_object(Dict(items))
    }
}

impl Object for Dict {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.0.get(key).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.0.keys().cloned().collect())
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.0.len())
    }

    fn custom_cmp(self: &Arc<Self>, other: &DynObject) -> Option<Ordering> {
        let (a, b) = (Value::from_dyn_object(self.clone()), Value::from(other.clone()));
        Some(compare(&a, &b, &mut { MAX_VISITED }))
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&repr(&Value::from_dyn_object(self.clone())))
    }
}

/// Python's `str(value)`.
pub fn display(value: &Value) -> String {
    match value.kind() {
        ValueKind::Undefined => String::new(),
        ValueKind::String => value.as_str().unwrap_or_default().to_string(),
        _ => repr(value),
    }
}

/// Python's `repr(value)`.
pub fn repr(value: &Value) -> String {
    let mut out = String::new();
    write_repr(&mut out, value, 0);
    out
}

fn write_repr(out: &mut String, value: &Value, depth: usize) {
    if depth > MAX_DEPTH || out.len() > MAX_TEXT {
        return out.push_str("...");
    }
    match value.kind() {
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::Number if !value.is_integer() => match f64::try_from(value.clone()) {
            Ok(number) => out.push_str(&float(number)),
            Err(_) => out.push_str(&value.to_string()),
        },
        ValueKind::String => write_string(out, value.as_str().unwrap_or_default()),
        ValueKind::Seq | ValueKind::Iterable => {
            out.push('[');
            for (index, item) in value.try_iter().into_iter().flatten().enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                write_repr(out, &item, depth + 1);
            }
            out.push(']');
        }
        ValueKind::Map => {
            let pairs = value.as_object().and_then(|object| object.try_iter_pairs());
            out.push('{');
            for (index, (key, item)) in pairs.into_iter().flatten().enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                write_repr(out, &key, depth + 1);
                out.push_str(": ");
                write_repr(out, &item, depth + 1);
            }
            out.push('}');
        }
        _ => out.push_str(&value.to_string()),
    }
}

/// Python's `repr` of a float: the shortest digits that read back the same, an exponent from 1e16 on and below 1e-4.
pub fn float(number: f64) -> String {
    if number.is_nan() {
        return "nan".into();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf".into() } else { "-inf".into() };
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) || number == 0.0 {
        let plain = number.to_string();
        return if plain.contains('.') { plain } else { plain + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

/// Invisible format characters (category Cf) and private use; controls and spaces are found by the standard library.
fn is_invisible(c: char) -> bool {
    matches!(c as u32, 0xad | 0x600..=0x605 | 0x61c | 0x6dd | 0x70f | 0x8e2 | 0x180e | 0x200b..=0x200f
        | 0x202a..=0x202e | 0x2060..=0x2064 | 0x2066..=0x206f | 0xe000..=0xf8ff | 0xfeff | 0xfff9..=0xfffb
        | 0xe0001..=0xe007f | 0xf0000..)
}

fn write_string(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        let escaped = c.is_control() || (c != ' ' && c.is_whitespace()) || is_invisible(c);
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            _ if c == quote => out.extend(['\\', c]),
            _ if !escaped => out.push(c),
            _ => {
                let _ = match c as u32 {
                    code @ 0..=0xff => write!(out, "\\x{code:02x}"),
                    code @ 0x100..=0xffff => write!(out, "\\u{code:04x}"),
                    code => write!(out, "\\U{code:08x}"),
                };
            }
        }
    }
    out.push(quote);
}

/// Python's `str.splitlines()`.
pub fn split_lines(text: &str) -> Vec<&str> {
    let is_end = |c: char| {
        matches!(c, '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}')
    };
    let mut lines = Vec::new();
    let mut rest = text;
    while let Some(end) = rest.find(is_end) {
        lines.push(&rest[..end]);
        let skipped = if rest[end..].starts_with("\r\n") {
            2
        } else {
            rest[end..].chars().next().map_or(0, char::len_utf8)
        };
        rest = &rest[end + skipped..];
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    lines
}

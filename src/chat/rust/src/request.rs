//! The request: JSON text to the variables of a template, with every number and the order of keys as written.

use crate::python::{Dict, List};
use crate::{Failure, Status};
use minijinja::Value;
use serde_json::{Map, Value as Json};

const FIELDS: [&str; 5] = ["messages", "tools", "kwargs", "special_tokens", "now"];

pub struct Request {
    pub variables: Vec<(String, Value)>,
    pub now: Option<String>,
}

fn bad<T>(message: String) -> Result<T, Failure> {
    Err((Status::BadRequest, message))
}

pub fn parse(request: &[u8]) -> Result<Request, Failure> {
    let text = match std::str::from_utf8(request) {
        Ok(text) => text,
        Err(error) => return bad(format!("the request is not UTF-8 at byte {}", error.valid_up_to())),
    };
    let json: Json = match serde_json::from_str(text) {
        Ok(json) => json,
        Err(error) => return bad(format!("the request is no JSON that can be used: {error}")),
    };
    let Json::Object(mut fields) = json else {
        return bad("the request must be a JSON object".into());
    };
    if let Some(name) = fields.keys().find(|name| !FIELDS.contains(&name.as_str())) {
        return bad(format!("{name}: not a field of the request, known are {}", FIELDS.join(", ")));
    }
    let now = match fields.remove("now") {
        None | Some(Json::Null) => None,
        Some(Json::String(now)) => Some(now),
        Some(_) => return bad("now: must be a string or null".into()),
    };
    let messages = messages(fields.remove("messages"))?;
    let tools = match fields.remove("tools") {
        None | Some(Json::Null) => Value::from(()),
        Some(tools @ Json::Array(_)) => value(tools)?,
        Some(_) => return bad("tools: must be an array or null".into()),
    };
    let mut variables = vec![("documents".into(), Value::from(()))];
    for name in ["special_tokens", "kwargs"] {
        for (key, json) in object(fields.remove(name), name)? {
            variables.push((key, value(json)?));
        }
    }
    variables.push(("messages".into(), messages));
    variables.push(("tools".into(), tools));
    Ok(Request { variables, now })
}

fn messages(field: Option<Json>) -> Result<Value, Failure> {
    let Some(Json::Array(messages)) = field else {
        return bad("messages: must be an array".into());
    };
    if let Some(index) = messages.iter().position(|message| !message.is_object()) {
        return bad(format!("messages[{index}]: must be an object"));
    }
    value(Json::Array(messages))
}

fn object(field: Option<Json>, name: &str) -> Result<Map<String, Json>, Failure> {
    match field {
        None | Some(Json::Null) => Ok(Map::new()),
        Some(Json::Object(map)) => Ok(map),
        Some(_) => bad(format!("{name}: must be an object")),
    }
}

/// Depth is bounded by the JSON parser.
fn value(json: Json) -> Result<Value, Failure> {
    Ok(match json {
        Json::Null => Value::from(()),
        Json::Bool(value) => Value::from(value),
        Json::String(text) => Value::from(text),
        Json::Number(number) => return parse_number(number.as_str()),
        Json::Array(items) => {
            let items: Result<Vec<_>, _> = items.into_iter().map(value).collect();
            List::value(items?)
        }
        Json::Object(map) => {
            let items: Result<_, Failure> =
                map.into_iter().map(|(key, item)| Ok((Value::from(key), value(item)?))).collect();
            Dict::value(items?)
        }
    })
}

fn parse_number(text: &str) -> Result<Value, Failure> {
    if text.contains(['.', 'e', 'E']) {
        return text.parse::<f64>().map(Value::from).or_else(|error| bad(format!("{text}: {error}")));
    }
    match (text.parse::<i64>(), text.parse::<i128>()) {
        (Ok(small), _) => Ok(Value::from(small)),
        (_, Ok(large)) => Ok(Value::from(large)),
        _ => bad(format!("{text}: an integer must fit 128 bits")),
    }
}

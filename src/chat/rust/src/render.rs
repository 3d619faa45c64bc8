//! One rendering, with everything bounded that the library lets us bound: steps, recursion, sizes.

use crate::python::MAX_TEXT;
use crate::request::{self, Request};
use crate::strftime::LocalTime;
use crate::{builtins, source, Failure, Status};
use minijinja::value::Value;
use minijinja::{Environment, Error, ErrorKind};
use std::io;
use std::sync::{Arc, Mutex};

/// The longest templates known have 20 KB.
const MAX_TEMPLATE: usize = 256 << 10;
const MAX_REQUEST: usize = 64 << 20;
/// Instructions, about 20 million a second. Most templates take 500 per message; a few look through all messages for
/// each, and then 2,000 messages take 15 million.
const FUEL: u64 = 100_000_000;
const MAX_RECURSION: usize = 400;

struct Bounded(Vec<u8>);

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_TEXT {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub fn render(template: &[u8], request: &[u8], now: &[u8]) -> Result<String, Failure> {
    let limit = |what: &str, size: usize, most: usize| match size > most {
        true => Err((Status::Limit, format!("{what} of {size} bytes, at most {most} can be used"))),
        false => Ok(()),
    };
    limit("a chat template", template.len(), MAX_TEMPLATE)?;
    limit("a request", request.len(), MAX_REQUEST)?;
    let template = std::str::from_utf8(template).map_err(|error| {
        (Status::Syntax, format!("the chat template is not UTF-8 at byte {}", error.valid_up_to()))
    })?;
    let Request { variables, now: asked } = request::parse(request)?;
    let now = asked.unwrap_or_else(|| String::from_utf8_lossy(now).into_owned());
    let now = LocalTime::parse(&now)
        .ok_or_else(|| (Status::BadRequest, format!("now: '{now}': must be like 2025-03-14T15:09:26")))?;

    let raised = Arc::new(Mutex::new(None));
    let env = environment(now, raised.clone());
    let rewritten = source::rewrite(template).map_err(|message| (Status::Limit, message))?;
    let parsed = env
        .template_from_named_str("chat template", &rewritten)
        .map_err(|error| failure(&error, template))?;
    let mut out = Bounded(Vec::new());
    let result = parsed.render_captured_to(variables.into_iter().collect::<Value>(), &mut out).map(|_| ());
    if let Err(error) = result {
        let message = raised.lock().map_or(None, |mut message| message.take());
        return Err(message.map_or_else(|| failure(&error, template), |message| (Status::Raised, message)));
    }
    String::from_utf8(out.0).map_err(|error| (Status::Failed, error.to_string()))
}

fn environment(now: LocalTime, raised: Arc<Mutex<Option<String>>>) -> Environment<'static> {
    let mut env = Environment::new();
    env.set_trim_blocks(true);
    env.set_lstrip_blocks(true);
    env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    env.set_fuel(Some(FUEL));
    env.set_recursion_limit(MAX_RECURSION);
    builtins::install(&mut env);
    env.add_function("strftime_now", move |format: &str| now.format(format));
    env.add_function("raise_exception", move |message: &Value| {
        let message = crate::python::display(message);
        if let Ok(mut raised) = raised.lock() {
            *raised = Some(message.clone());
        }
        Err::<Value, _>(Error::new(ErrorKind::InvalidOperation, message))
    });
    env
}

fn failure(error: &Error, template: &str) -> Failure {
    // A failure inside a macro is wrapped; the innermost one says what is wrong.
    let mut innermost = error;
    while let Some(source) = std::error::Error::source(innermost).and_then(|e| e.downcast_ref::<Error>()) {
        innermost = source;
    }
    let line = innermost.line().or(error.line());
    let place = line.map_or(String::new(), |line| format!("line {line}: "));
    let what = match (innermost.kind(), innermost.detail()) {
        (ErrorKind::OutOfFuel, None) => format!("more than {FUEL} steps"),
        (ErrorKind::OutOfFuel, Some(detail)) => detail.to_string(),
        (ErrorKind::WriteFailure, _) => format!("a text of more than {MAX_TEXT} bytes"),
        (kind, None) => kind.to_string(),
        (kind, Some(detail)) => format!("{kind}: {detail}"),
    };
    let mut text = format!("{place}{what}").replace('\n', " ");
    let status = match innermost.kind() {
        ErrorKind::SyntaxError | ErrorKind::BadEscape => Status::Syntax,
        ErrorKind::UnknownFilter
        | ErrorKind::UnknownTest
        | ErrorKind::UnknownFunction
        | ErrorKind::UnknownMethod => Status::Unsupported,
        ErrorKind::OutOfFuel => Status::Limit,
        ErrorKind::WriteFailure => Status::Limit,
        _ if text.contains("recursion limit") => Status::Limit,
        _ => Status::Failed,
    };
    if status == Status::Syntax && is_go_template(template) {
        text.push_str(" (this looks like a Go template; a Jinja template is needed)");
    }
    (status, text)
}

/// "{{ .Messages }}", "{{- range .Messages }}", "{{ if .System }}": what Ollama uses.
fn is_go_template(template: &str) -> bool {
    template.split("{{").skip(1).any(|tag| {
        let body = tag.trim_start_matches('-').trim_start();
        let body = ["if ", "range ", "with "].iter().find_map(|word| body.strip_prefix(word)).unwrap_or(body);
        body.starts_with(['.', '$'])
    })
}

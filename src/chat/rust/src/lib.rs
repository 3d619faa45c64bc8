//! Chat templates and grammars for Ganglion behind a C border, see `../../chat_rust.h`. Nothing here prints, keeps state or lets
//! a panic out.

mod builtins;
mod grammar;
mod python;
mod render;
mod request;
mod source;
mod strftime;
mod tojson;

use std::any::Any;
use std::mem::ManuallyDrop;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Once;

/// Numbers are shared with `chat_rust.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Status {
    Ok = 0,
    BadRequest = 1,
    Raised = 2,
    Syntax = 3,
    Unsupported = 4,
    Failed = 5,
    Limit = 6,
    Panic = 7,
}

/// Why there is no text: the kind and one line.
pub type Failure = (Status, String);

#[repr(C)]
pub struct Text {
    data: *mut u8,
    size: usize,
    capacity: usize,
}

impl Text {
    fn from_string(text: String) -> Text {
        let mut bytes = ManuallyDrop::new(text.into_bytes());
        Text { data: bytes.as_mut_ptr(), size: bytes.len(), capacity: bytes.capacity() }
    }
}

/// Rendering runs on a thread of its own, so that the depth a template may reach does not depend on the stack of
/// whoever calls. Only touched pages cost memory.
const STACK_BYTES: usize = 64 << 20;

fn panic_text(payload: Box<dyn Any + Send>) -> Failure {
    let text = payload
        .downcast_ref::<&str>()
        .map(|text| text.to_string())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "unknown cause".into());
    (Status::Panic, format!("the template library failed: {text}"))
}

/// The default hook writes to stderr, which is not a library's.
fn silence_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| std::panic::set_hook(Box::new(|_| {})));
}

/// # Safety
/// `data` must be valid for `size` bytes.
unsafe fn bytes<'a>(data: *const u8, size: usize) -> &'a [u8] {
    match size {
        0 => &[][..],
        _ => std::slice::from_raw_parts(data, size),
    }
}

fn render_on_own_thread(source: &[u8], request: &[u8], now: &[u8]) -> Result<String, Failure> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .stack_size(STACK_BYTES)
            .spawn_scoped(scope, || render::render(source, request, now))
            .map_err(|error| (Status::Limit, format!("no thread for rendering: {error}")))?;
        thread.join().unwrap_or_else(|payload| Err(panic_text(payload)))
    })
}

/// # Safety
/// Each pointer must be valid for its size, `out` for writing one `Text`.
#[no_mangle]
pub unsafe extern "C" fn ganglion_chat_render(
    source: *const u8,
    source_size: usize,
    request: *const u8,
    request_size: usize,
    now: *const u8,
    now_size: usize,
    out: *mut Text,
) -> i32 {
    let (source, request, now) =
        (bytes(source, source_size), bytes(request, request_size), bytes(now, now_size));
    let result = catch_unwind(AssertUnwindSafe(|| {
        silence_panics();
        render_on_own_thread(source, request, now)
    }))
    .unwrap_or_else(|payload| Err(panic_text(payload)));
    let (status, text) = match result {
        Ok(text) => (Status::Ok, text),
        Err(failure) => failure,
    };
    out.write(Text::from_string(text));
    status as i32
}

/// # Safety
/// `text` must come from `ganglion_chat_render` and not be used again.
#[no_mangle]
pub unsafe extern "C" fn ganglion_chat_free(text: Text) {
    drop(Vec::from_raw_parts(text.data, text.size, text.capacity));
}

// Chat templates: a conversation to the text that a model was trained on. Used by cli/ and server/.
#pragma once

#include <string>
#include <string_view>

#include "ganglion/error.h"

namespace ganglion {

/// Whether this build can render chat templates (it has the Rust library).
bool chat_available();

/// Renders a Jinja template, as `tokenizer.chat_template` holds it, like transformers' apply_chat_template
/// does.
///
/// `request_json` is a JSON object of these fields and no others, in UTF-8; the order of keys within is kept:
///   "messages": [{"role": ..., "content": ...}, ...]
///   "tools": [...] or null
///   "kwargs": {...}          further variables: add_generation_prompt, enable_thinking, documents, ...
///   "special_tokens": {...}  variables bos_token, eos_token, ...; kwargs win
///   "now": "2025-03-14T15:09:26" or null  local time for strftime_now; null or absent: the clock
/// Messages are shown to the template as they are: leaving out keys that are null, and turning lists of text
/// parts into a string for templates that want one, is the caller's.
///
/// Errors:
///   kInvalidArgument  the request is malformed, or the template refuses or cannot render these messages (the
///                     message has the template's own words from raise_exception)
///   kModelFile        the template does not parse; with the line
///   kUnsupported      it uses a filter, test, function or method that is not known, with the line; or this
///                     build has no chat templates
///   kResources        more than 256 KiB of template, 64 MiB of request, 16 MiB of text, 100 million steps,
///                     too deep recursion
///   kInternal         a bug in the template library
/// There is no fallback to another template.
///
/// Cost: parses the template each time; about half a millisecond for a usual one, 20 ms for 2,000 messages.
/// Runs on a thread of its own with 64 MiB of address space for its stack. Thread-safe. Not bounded: how long
/// a string gets within a template that doubles it on purpose.
Result<std::string> render_chat(std::string_view template_source, std::string_view request_json);

}  // namespace ganglion

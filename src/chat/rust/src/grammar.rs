//! Grammars by llguidance: which tokens may come next. See `../../chat_rust.h`.

use std::any::Any;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Arc, Mutex};

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};

use crate::{bytes, panic_text, silence_panics, Failure, Status, Text};

const MOST_GRAMMAR_BYTES: usize = 1 << 20;

pub struct Vocabulary {
    factory: Mutex<ParserFactory>,
}

pub struct Grammar {
    matcher: Matcher,
}

/// Messages of other crates as one line.
fn one_line(text: impl ToString) -> String {
    let text = text.to_string();
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    line.chars().take(500).collect()
}

fn failed(status: Status) -> impl Fn(&dyn ToString) -> Failure {
    move |error| (status, one_line(error.to_string()))
}

/// Runs a body, turns a panic into a status, and writes the message.
unsafe fn guarded(message: *mut Text, body: impl FnOnce() -> Result<(), Failure>) -> i32 {
    let result = catch_unwind(AssertUnwindSafe(|| {
        silence_panics();
        body()
    }))
    .unwrap_or_else(|payload: Box<dyn Any + Send>| Err(panic_text(payload)));
    let (status, text) = match result {
        Ok(()) => (Status::Ok, String::new()),
        Err(failure) => failure,
    };
    message.write(Text::from_string(text));
    status as i32
}

fn make_vocabulary(data: &[u8], ends: &[u64], special: &[u8], eos: &[u32]) -> Result<Vocabulary, Failure> {
    let internal = failed(Status::Failed);
    if eos.is_empty() {
        return Err((Status::Unsupported, "the vocabulary has no token that ends a text".into()));
    }
    let mut begin = 0;
    let words: Vec<Vec<u8>> = ends
        .iter()
        .zip(special)
        .map(|(&end, &special)| {
            let mut word = if special != 0 { vec![TokTrie::SPECIAL_TOKEN_MARKER] } else { Vec::new() };
            word.extend_from_slice(&data[begin..end as usize]);
            begin = end as usize;
            word
        })
        .collect();
    let info = TokRxInfo::new(words.len() as u32, eos[0]);
    let trie = TokTrie::from(&info, &words).with_eos_tokens(eos);
    let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
    let mut factory = ParserFactory::new_simple(&env).map_err(|error| internal(&error))?;
    factory.quiet();
    Ok(Vocabulary { factory: Mutex::new(factory) })
}

fn make_grammar(vocabulary: &Vocabulary, kind: i32, text: &[u8]) -> Result<Grammar, Failure> {
    let bad = failed(Status::BadRequest);
    if text.len() > MOST_GRAMMAR_BYTES {
        return Err((Status::Limit, format!("longer than {MOST_GRAMMAR_BYTES} bytes")));
    }
    let text = std::str::from_utf8(text).map_err(|error| bad(&error))?;
    let tag = match kind {
        0 => "json_schema",
        1 => "lark",
        _ => "regex",
    };
    let top = TopLevelGrammar::from_tagged_str(tag, text).map_err(|error| bad(&error))?;
    let factory = vocabulary.factory.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let parser = factory.create_parser(top).map_err(|error| bad(&format!("{error:#}")))?;
    let mut matcher = Matcher::new(Ok(parser));
    // A schema that nothing can satisfy shows here at the latest.
    matcher.compute_mask_or_eos().map_err(|error| bad(&format!("{error:#}")))?;
    Ok(Grammar { matcher })
}

/// # Safety
/// Each pointer must be valid for its size; `data` for the last of `ends`.
#[no_mangle]
pub unsafe extern "C" fn ganglion_vocabulary_new(
    data: *const u8,
    ends: *const u64,
    special: *const u8,
    count: usize,
    eos: *const u32,
    eos_count: usize,
    out: *mut *mut Vocabulary,
    message: *mut Text,
) -> i32 {
    out.write(std::ptr::null_mut());
    guarded(message, || {
        let ends = std::slice::from_raw_parts(ends, count);
        let data = bytes(data, ends.last().copied().unwrap_or(0) as usize);
        let special = std::slice::from_raw_parts(special, count);
        let eos = std::slice::from_raw_parts(eos, eos_count);
        out.write(Box::into_raw(Box::new(make_vocabulary(data, ends, special, eos)?)));
        Ok(())
    })
}

/// # Safety
/// `vocabulary` must come from `ganglion_vocabulary_new` or be null, and not be used again.
#[no_mangle]
pub unsafe extern "C" fn ganglion_vocabulary_free(vocabulary: *mut Vocabulary) {
    if !vocabulary.is_null() {
        drop(Box::from_raw(vocabulary));
    }
}

/// # Safety
/// `vocabulary` must be alive; `text` valid for its size.
#[no_mangle]
pub unsafe extern "C" fn ganglion_grammar_new(
    vocabulary: *const Vocabulary,
    kind: i32,
    text: *const u8,
    text_size: usize,
    out: *mut *mut Grammar,
    message: *mut Text,
) -> i32 {
    out.write(std::ptr::null_mut());
    guarded(message, || {
        let grammar = make_grammar(&*vocabulary, kind, bytes(text, text_size))?;
        out.write(Box::into_raw(Box::new(grammar)));
        Ok(())
    })
}

/// # Safety
/// `grammar` must be alive; `words` valid for `word_count` words.
#[no_mangle]
pub unsafe extern "C" fn ganglion_grammar_mask(
    grammar: *mut Grammar,
    words: *mut u32,
    word_count: usize,
    message: *mut Text,
) -> i32 {
    guarded(message, || {
        let mask = (*grammar)
            .matcher
            .compute_mask_or_eos()
            .map_err(|error| failed(Status::Failed)(&format!("{error:#}")))?;
        let words = std::slice::from_raw_parts_mut(words, word_count);
        let source = mask.as_slice();
        for (i, word) in words.iter_mut().enumerate() {
            *word = source.get(i).copied().unwrap_or(0);
        }
        Ok(())
    })
}

/// # Safety
/// `grammar` must be alive.
#[no_mangle]
pub unsafe extern "C" fn ganglion_grammar_accept(grammar: *mut Grammar, token: u32, message: *mut Text) -> i32 {
    guarded(message, || {
        (*grammar)
            .matcher
            .consume_token(token)
            .map_err(|error| failed(Status::Failed)(&format!("{error:#}")))
    })
}

/// # Safety
/// `grammar` must be alive.
#[no_mangle]
pub unsafe extern "C" fn ganglion_grammar_reset(grammar: *mut Grammar, message: *mut Text) -> i32 {
    guarded(message, || {
        (*grammar).matcher.reset().map_err(|error| failed(Status::Failed)(&format!("{error:#}")))
    })
}

/// # Safety
/// `grammar` must come from `ganglion_grammar_new` or be null, and not be used again.
#[no_mangle]
pub unsafe extern "C" fn ganglion_grammar_free(grammar: *mut Grammar) {
    if !grammar.is_null() {
        drop(Box::from_raw(grammar));
    }
}

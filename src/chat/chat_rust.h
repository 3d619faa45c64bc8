/* The C border to the Rust library in rust/: chat templates and grammars. Nothing unwinds across it; it
 * prints nothing and keeps no state of its own. Used by chat_template.cc and grammar.cc only. */
#ifndef GANGLION_CHAT_CHAT_RUST_H_
#define GANGLION_CHAT_CHAT_RUST_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Numbers are shared with rust/src/lib.rs. */
enum ganglion_chat_status {
  GANGLION_CHAT_OK = 0,
  GANGLION_CHAT_BAD_REQUEST = 1, /* The request is no JSON of the agreed form. */
  GANGLION_CHAT_RAISED = 2,      /* The template called raise_exception; the text is its message. */
  GANGLION_CHAT_SYNTAX = 3,      /* The template does not parse. */
  GANGLION_CHAT_UNSUPPORTED = 4, /* A filter, test, function or method that is not known. */
  GANGLION_CHAT_FAILED = 5,      /* The template cannot render these messages. */
  GANGLION_CHAT_LIMIT = 6,       /* Too many steps, too deep, too long. */
  GANGLION_CHAT_PANIC = 7        /* A bug in the library. */
};

/* UTF-8 owned by the library until ganglion_chat_free. */
struct ganglion_chat_text {
  char* data;
  size_t size;
  size_t capacity;
};

/* Renders `source` for `request` (see ganglion/chat.h); `now` is the local time as "2025-03-14T15:09:26" for
 * requests that give none. None of the texts needs a final zero. Returns a ganglion_chat_status and always
 * fills `out`: the rendered text, or a message of one line. Thread-safe. */
int ganglion_chat_render(const char* source, size_t source_size, const char* request, size_t request_size,
                         const char* now, size_t now_size, struct ganglion_chat_text* out);

void ganglion_chat_free(struct ganglion_chat_text text);

struct ganglion_vocabulary;
struct ganglion_grammar;

/* All of these return a ganglion_chat_status and always fill `message` (empty when ok). */

/* `data` holds the tokens' bytes one after the other, token i ending at ends[i]; special[i] marks control
 * tokens; `eos` are those that end a text. The result is thread-safe. */
int ganglion_vocabulary_new(const char* data, const uint64_t* ends, const uint8_t* special, size_t count,
                            const uint32_t* eos, size_t eos_count, struct ganglion_vocabulary** out,
                            struct ganglion_chat_text* message);
void ganglion_vocabulary_free(struct ganglion_vocabulary* vocabulary);

/* `kind`: 0 JSON schema, 1 Lark, 2 regular expression. Must not outlive the vocabulary; one thread at a time.
 */
int ganglion_grammar_new(const struct ganglion_vocabulary* vocabulary, int kind, const char* text,
                         size_t text_size, struct ganglion_grammar** out, struct ganglion_chat_text* message);
/* Fills `words` with a bit per token, set where it may come next. */
int ganglion_grammar_mask(struct ganglion_grammar* grammar, uint32_t* words, size_t word_count,
                          struct ganglion_chat_text* message);
int ganglion_grammar_accept(struct ganglion_grammar* grammar, uint32_t token,
                            struct ganglion_chat_text* message);
int ganglion_grammar_reset(struct ganglion_grammar* grammar, struct ganglion_chat_text* message);
void ganglion_grammar_free(struct ganglion_grammar* grammar);

#ifdef __cplusplus
}
#endif

#endif /* GANGLION_CHAT_CHAT_RUST_H_ */

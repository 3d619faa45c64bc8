// Restricts what is generated: JSON, a JSON schema, a regular expression or a grammar. Used by server/.
#pragma once

#include <memory>
#include <string>

#include "ganglion/error.h"
#include "ganglion/sampling.h"
#include "ganglion/text.h"

namespace ganglion {

enum class GrammarKind {
  kJsonSchema,  ///< A JSON schema as text; "{}" allows any JSON value.
  kLark,        ///< A grammar in llguidance's dialect of Lark; its start symbol is `start`.
  kRegex,       ///< A regular expression for the whole text.
};

/// Whether this build can enforce grammars (it has the Rust library).
bool grammar_available();

/// The vocabulary in the form that masks are computed from; one per model, shared by all filters.
/// Thread-safe. Memory: about 16 bytes per byte of the vocabulary, made with the first filter.
class GrammarVocabulary {
 public:
  /// `text` must outlive it.
  explicit GrammarVocabulary(const TextModel& text);
  ~GrammarVocabulary();
  GrammarVocabulary(const GrammarVocabulary&) = delete;
  GrammarVocabulary& operator=(const GrammarVocabulary&) = delete;

  /// A filter that lets only tokens pass with which the text can still become one of the grammar; the end
  /// only where the text is complete. It must not outlive this object. Errors: kInvalidArgument (the grammar
  /// is malformed, or a schema uses what is not supported, by name), kUnsupported (a build without the
  /// library), kResources (a grammar too large).
  Result<std::unique_ptr<TokenFilter>> filter(GrammarKind kind, const std::string& text);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ganglion

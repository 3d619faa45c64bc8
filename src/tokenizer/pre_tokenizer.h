// Cuts a text into the words that byte-level BPE merges within, by the patterns a model was trained with.
//
// Patterns run on PCRE2's interpreter, not its JIT: that one keeps its state on the heap, bounded by us,
// needs no executable memory, and cannot overflow a stack on a megabyte without a space.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

struct pcre2_real_code_8;
struct pcre2_real_match_context_8;

namespace ganglion::tokenizer {

/// One pass over the pieces found so far: every match becomes a piece, and so does what lies between matches.
struct PreTokenizerStep {
  /// PCRE2 with the additions of expand_pattern (pre_tokenizer.cc): \s as Unicode white space, and {{names}}.
  std::string_view pattern;
  /// Matches are cut further into groups of three characters, counted from their end (1 234 567).
  bool threes_from_right = false;
};

struct PreTokenizerSpec {
  std::span<const PreTokenizerStep> steps;
  bool ignore_merges = false;  ///< A word that is a token is that token, whatever the merges say.
  bool adds_bos = false;       ///< Unless the metadata says otherwise.
  bool raw_utf8 = false;       ///< Merges run on characters with U+2581 for spaces, not on bytes (Gemma 4).
};

/// Null for a name that is not known.
const PreTokenizerSpec* find_pre_tokenizer(std::string_view name);
/// All names, separated by ", ".
std::string pre_tokenizer_names();

/// Immutable after create; split may run on several threads.
class PreTokenizer {
 public:
  /// Errors: kInternal if a pattern of ours does not compile, kResources for want of memory.
  static base::Result<PreTokenizer> create(const PreTokenizerSpec& spec);

  PreTokenizer(PreTokenizer&&) noexcept;
  PreTokenizer& operator=(PreTokenizer&&) noexcept;
  ~PreTokenizer();

  /// Writes the end offset of each piece of `text`, ascending, to `ends`. `text` must be valid UTF-8.
  /// Errors: kResources where a match needs more memory than it may.
  base::Status split(std::string_view text, std::vector<uint32_t>* ends) const;

 private:
  struct CodeDeleter {
    void operator()(pcre2_real_code_8* code) const;
  };
  struct ContextDeleter {
    void operator()(pcre2_real_match_context_8* context) const;
  };
  struct Step {
    std::unique_ptr<pcre2_real_code_8, CodeDeleter> code;
    bool threes_from_right = false;
  };

  PreTokenizer() = default;

  std::vector<Step> steps_;
  std::unique_ptr<pcre2_real_match_context_8, ContextDeleter> context_;
};

}  // namespace ganglion::tokenizer

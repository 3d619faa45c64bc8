// Which tokens begin, end and frame a text: from the metadata where it says so, else from the tokens'
// well-known names. The rules for ends of generation are llama.cpp's, so that a file stops where its users
// expect.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/metadata.h"
#include "tokenizer/vocabulary.h"

namespace ganglion::tokenizer {

/// -1: the model has none.
struct SpecialIds {
  int32_t bos = -1;
  int32_t eos = -1;
  int32_t eot = -1;
  int32_t eom = -1;
  int32_t unk = -1;
  int32_t pad = -1;
};

/// Watches the tokens go by while they are loaded and remembers those with a known name.
class SpecialTokenFinder {
 public:
  SpecialTokenFinder();
  void see(uint32_t id, std::string_view raw_text);

  /// Fills `ids` (which holds the kind's defaults) and returns the ids that end a generation, ascending.
  /// Corrects the types in `vocabulary` of tokens whose name says more than their type. Errors: kModelFile
  /// where an id that matters is out of range; one that does not is dropped with a warning.
  base::Result<std::vector<int32_t>> resolve(const base::Metadata& metadata, Vocabulary* vocabulary,
                                             SpecialIds* ids, std::vector<std::string>* warnings) const;

 private:
  uint32_t id_of(std::string_view name) const;
  int32_t first_of(std::span<const std::string_view> names, Vocabulary* vocabulary) const;
  std::vector<int32_t> ends_of_generation(std::vector<int32_t> ends, Vocabulary* vocabulary) const;

  std::vector<uint32_t> found_;  ///< By place in the table of names.
};

/// Marks the tokens that swallow white space beside them. Files do not say so; known by the model's name.
void set_strip_attributes(const base::Metadata& metadata, const std::vector<uint32_t>& special_ids,
                          Vocabulary* vocabulary);

}  // namespace ganglion::tokenizer

// Which name GGUF files use for the pre-tokenizer that a tokenizer.json spells out.
#include <algorithm>
#include <iterator>

#include "convert/tokenizer_files.h"

namespace ganglion::convert {

using format::Json;

namespace {

// Steps in one line, as describe() writes them. Sources: the tokenizer.json of models of these kinds.
struct Known {
  std::string_view steps;
  bool ignore_merges;
  std::string_view name;
};

constexpr std::string_view kGpt2 = "bytes(gpt2)";
constexpr std::string_view kSmollm = "digits(1)+bytes(gpt2)";
constexpr std::string_view kQwen2 =
    R"re(split((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)re"
    R"re(\s*[\r\n]+|\s+(?!\S)|\s+)+bytes)re";
constexpr std::string_view kLlama3 =
    R"re(split((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)re"
    R"re(\s*[\r\n]+|\s+(?!\S)|\s+)+bytes)re";
constexpr std::string_view kTekken =
    R"re(split([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)re"
    R"re([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}|)re"
    R"re( ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)+bytes)re";

constexpr Known kKnown[] = {
    {kGpt2, false, "gpt-2"},      {kSmollm, false, "smollm"},    {kQwen2, false, "qwen2"},
    {kLlama3, true, "llama-bpe"}, {kLlama3, false, "smaug-bpe"}, {kTekken, true, "tekken"},
};

void describe(const Json& step, std::string* out) {
  const std::string& type = step["type"].text();
  if (type == "Sequence") {
    for (const Json& part : step["pretokenizers"].items()) describe(part, out);
    return;
  }
  if (!out->empty()) *out += "+";
  if (type == "ByteLevel") {
    *out += step["use_regex"].bool_or(true) ? "bytes(gpt2)" : "bytes";
    if (step["add_prefix_space"].bool_or(false)) *out += "+prefix";
  } else if (type == "Digits") {
    *out += step["individual_digits"].bool_or(false) ? "digits(1)" : "digits";
  } else if (type == "Split" && step["behavior"].text() == "Isolated" && !step["invert"].bool_or(false)) {
    *out += "split(" + step["pattern"]["Regex"].text() + ")";
  } else {
    *out += type + "?";
  }
}

}  // namespace

std::string pre_tokenizer_name(const Json& pre_tokenizer, bool ignore_merges) {
  std::string steps;
  describe(pre_tokenizer, &steps);
  const auto* found = std::find_if(std::begin(kKnown), std::end(kKnown), [&](const Known& known) {
    return known.steps == steps && known.ignore_merges == ignore_merges;
  });
  return found == std::end(kKnown) ? "" : std::string(found->name);
}

}  // namespace ganglion::convert

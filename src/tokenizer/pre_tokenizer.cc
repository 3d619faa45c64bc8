#include "tokenizer/pre_tokenizer.h"

#include <utility>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/units.h"

namespace ganglion::tokenizer {

namespace {

using base::Code;
using base::Result;
using base::Status;

// PCRE2's own \s also takes U+180E and its scripts changed meaning between versions; these do not depend on
// that.
constexpr std::string_view kWhiteSpace = R"(\t-\r\x{85}\p{Z})";
constexpr std::pair<std::string_view, std::string_view> kNames[] = {
    {"{{contraction}}", "'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])"},
    {"{{lower_contraction}}", "'(?:[stmd]|re|ve|ll)"},
    {"{{upper}}", R"(\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M})"},
    {"{{lower}}", R"(\p{Ll}\p{Lm}\p{Lo}\p{M})"},
    {"{{han}}",
     R"(\x{2E80}-\x{2E99}\x{2E9B}-\x{2EF3}\x{2F00}-\x{2FD5}\x{3005}\x{3007}\x{3021}-\x{3029})"
     R"(\x{3038}-\x{303B})"
     R"(\x{3400}-\x{4DBF}\x{4E00}-\x{9FFF}\x{F900}-\x{FA6D}\x{FA70}-\x{FAD9}\x{16FE2}\x{16FE3}\x{16FF0})"
     R"(\x{16FF1})"
     R"(\x{20000}-\x{2A6DF}\x{2A700}-\x{2B739}\x{2B740}-\x{2B81D}\x{2B820}-\x{2CEA1}\x{2CEB0}-\x{2EBE0})"
     R"(\x{2F800}-\x{2FA1D}\x{30000}-\x{3134A}\x{31350}-\x{323AF})"},
};
constexpr uint32_t kMatchHeapKib = 256 * 1024;

// Appends what the {{name}} at the start of `pattern` stands for and returns the name's length; 0 if there is
// none.
size_t append_named(std::string_view pattern, std::string* out) {
  if (pattern.substr(0, 2) != "{{") return 0;
  for (const auto& [name, text] : kNames) {
    if (pattern.substr(0, name.size()) != name) continue;
    out->append(text);
    return name.size();
  }
  return 0;
}

// Writes out \s, \S (the latter outside brackets only) and the {{names}}.
std::string expand_pattern(std::string_view pattern) {
  std::string out;
  bool in_brackets = false;
  for (size_t at = 0; at < pattern.size();) {
    const char c = pattern[at];
    if (c == '\\' && at + 1 < pattern.size()) {
      const char escaped = pattern[at + 1];
      if (escaped == 's' || escaped == 'S') {
        out += in_brackets ? "" : escaped == 's' ? "[" : "[^";
        out += kWhiteSpace;
        out += in_brackets ? "" : "]";
      } else {
        out.append(pattern.substr(at, 2));
      }
      at += 2;
      continue;
    }
    if (const size_t length = append_named(pattern.substr(at), &out); length > 0) {
      at += length;
      continue;
    }
    if (c == '[') in_brackets = true;
    if (c == ']') in_brackets = false;
    out.push_back(c);
    ++at;
  }
  return out;
}

struct MatchDataDeleter {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};

// Pushes the ends of groups of three characters within text[begin, end), the short group first.
void push_threes(std::string_view text, size_t begin, size_t end, std::vector<uint32_t>* ends) {
  auto is_lead = [&](size_t at) { return (static_cast<uint8_t>(text[at]) & 0xC0U) != 0x80U; };
  size_t left = 0;
  for (size_t at = begin; at < end; ++at) left += is_lead(at) ? 1 : 0;
  for (size_t at = begin; at < end; ++at) {
    if (!is_lead(at)) continue;
    if (at != begin && left % 3 == 0) ends->push_back(static_cast<uint32_t>(at));
    --left;
  }
  ends->push_back(static_cast<uint32_t>(end));
}

}  // namespace

PreTokenizer::PreTokenizer(PreTokenizer&&) noexcept = default;
PreTokenizer& PreTokenizer::operator=(PreTokenizer&&) noexcept = default;
PreTokenizer::~PreTokenizer() = default;

void PreTokenizer::CodeDeleter::operator()(pcre2_real_code_8* code) const {
  pcre2_code_free(code);
}
void PreTokenizer::ContextDeleter::operator()(pcre2_real_match_context_8* context) const {
  pcre2_match_context_free(context);
}

Result<PreTokenizer> PreTokenizer::create(const PreTokenizerSpec& spec) {
  PreTokenizer out;
  for (const PreTokenizerStep& step : spec.steps) {
    const std::string pattern = expand_pattern(step.pattern);
    int error = 0;
    PCRE2_SIZE where = 0;
    pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), PCRE2_UTF,
                                     &error, &where, nullptr);
    if (code == nullptr) {
      return Status(Code::kInternal,
                    base::format("pre-tokenizer pattern fails at byte %zu of %zu: PCRE2 error %d", where,
                                 pattern.size(), error));
    }
    out.steps_.push_back(Step{{}, step.threes_from_right});
    out.steps_.back().code.reset(code);
  }
  out.context_.reset(pcre2_match_context_create(nullptr));
  if (out.context_ == nullptr) return Status(Code::kResources, "no memory for the pre-tokenizer");
  pcre2_set_match_limit(out.context_.get(), UINT32_MAX);
  pcre2_set_depth_limit(out.context_.get(), UINT32_MAX);
  pcre2_set_heap_limit(out.context_.get(), kMatchHeapKib);
  return out;
}

Status PreTokenizer::split(std::string_view text, std::vector<uint32_t>* ends) const {
  ends->clear();
  if (text.empty()) return base::ok_status();
  ends->push_back(static_cast<uint32_t>(text.size()));
  std::vector<uint32_t> pieces;
  const std::unique_ptr<pcre2_match_data, MatchDataDeleter> data(pcre2_match_data_create(1, nullptr));
  if (data == nullptr) return Status(Code::kResources, "no memory to split a text into words");
  for (const Step& step : steps_) {
    pieces.swap(*ends);
    ends->clear();
    size_t begin = 0;
    for (const size_t end : pieces) {
      // The subject is the piece alone: look-aheads must not see past it.
      const std::string_view piece = text.substr(begin, end - begin);
      for (size_t at = 0; at < piece.size();) {
        const int found =
            pcre2_match(step.code.get(), reinterpret_cast<PCRE2_SPTR>(piece.data()), piece.size(), at,
                        PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, data.get(), context_.get());
        if (found == PCRE2_ERROR_NOMATCH) break;
        if (found < 0) {
          return Status(Code::kResources,
                        base::format("splitting a text of %zu bytes into words: PCRE2 error %d - "
                                     "send it in smaller parts",
                                     text.size(), found));
        }
        const PCRE2_SIZE* match = pcre2_get_ovector_pointer(data.get());
        if (match[0] > at) ends->push_back(static_cast<uint32_t>(begin + match[0]));
        if (step.threes_from_right) {
          push_threes(text, begin + match[0], begin + match[1], ends);
        } else {
          ends->push_back(static_cast<uint32_t>(begin + match[1]));
        }
        at = match[1];
      }
      if (ends->empty() || ends->back() != end) ends->push_back(static_cast<uint32_t>(end));
      begin = end;
    }
  }
  return base::ok_status();
}

}  // namespace ganglion::tokenizer

#include "tokenizer/score_merger.h"

#include <algorithm>

#include "tokenizer/utf8.h"

namespace ganglion::tokenizer {

namespace {

struct Symbol {
  uint32_t begin;
  uint32_t length;  ///< 0 once merged into its left neighbour.
  int32_t previous;
  int32_t next;
};

struct Candidate {
  float score;
  int32_t left;
  uint32_t length;  ///< Of both parts; tells whether the pair is still the one this was made for.
};

// Highest score first, then leftmost.
bool goes_later(const Candidate& a, const Candidate& b) {
  return a.score < b.score || (a.score == b.score && a.left > b.left);
}

class Merger {
 public:
  Merger(const Vocabulary& vocabulary, std::string_view text) : vocabulary_(vocabulary), text_(text) {
    for (size_t at = 0; at < text.size();) {
      const Utf8Char c = utf8_first(text.substr(at));
      // Broken bytes stand alone, so that each finds its byte token.
      const uint32_t length = c.valid ? c.length : 1;
      const auto index = static_cast<int32_t>(symbols_.size());
      symbols_.push_back({static_cast<uint32_t>(at), length, index - 1, index + 1});
      at += length;
    }
    if (!symbols_.empty()) symbols_.back().next = -1;
  }

  void run() {
    for (size_t i = 1; i < symbols_.size(); ++i)
      consider(static_cast<int32_t>(i) - 1, static_cast<int32_t>(i));
    while (!queue_.empty()) {
      std::pop_heap(queue_.begin(), queue_.end(), goes_later);
      const Candidate top = queue_.back();
      queue_.pop_back();
      Symbol& left = symbols_[static_cast<size_t>(top.left)];
      if (left.length == 0 || left.next < 0) continue;
      Symbol& right = symbols_[static_cast<size_t>(left.next)];
      // Parts only grow, so an equal sum means an unchanged pair.
      if (left.length + right.length != top.length) continue;
      left.length += right.length;
      right.length = 0;
      left.next = right.next;
      if (left.next >= 0) symbols_[static_cast<size_t>(left.next)].previous = top.left;
      consider(left.previous, top.left);
      consider(top.left, left.next);
    }
  }

  void append(int32_t unk, std::vector<int32_t>* ids) const {
    for (int32_t at = symbols_.empty() ? -1 : 0; at >= 0; at = symbols_[static_cast<size_t>(at)].next) {
      const Symbol& symbol = symbols_[static_cast<size_t>(at)];
      const std::string_view bytes = text_.substr(symbol.begin, symbol.length);
      if (const uint32_t id = vocabulary_.find(bytes); vocabulary_.is_token(id)) {
        ids->push_back(static_cast<int32_t>(id));
        continue;
      }
      for (char c : bytes) {
        const uint32_t id = vocabulary_.byte_ids[static_cast<uint8_t>(c)];
        if (vocabulary_.is_token(id)) {
          ids->push_back(static_cast<int32_t>(id));
        } else if (unk >= 0) {
          ids->push_back(unk);
        }
      }
    }
  }

 private:
  void consider(int32_t left, int32_t right) {
    if (left < 0 || right < 0) return;
    const Symbol& a = symbols_[static_cast<size_t>(left)];
    const uint32_t length = a.length + symbols_[static_cast<size_t>(right)].length;
    if (length > vocabulary_.longest_piece) return;
    const uint32_t id = vocabulary_.find(text_.substr(a.begin, length));
    if (!vocabulary_.is_token(id)) return;
    queue_.push_back({vocabulary_.scores[id], left, length});
    std::push_heap(queue_.begin(), queue_.end(), goes_later);
  }

  const Vocabulary& vocabulary_;
  std::string_view text_;
  std::vector<Symbol> symbols_;
  std::vector<Candidate> queue_;
};

}  // namespace

void score_merge(const Vocabulary& vocabulary, std::string_view text, int32_t unk,
                 std::vector<int32_t>* ids) {
  Merger merger(vocabulary, text);
  merger.run();
  merger.append(unk, ids);
}

}  // namespace ganglion::tokenizer

#include "tokenizer/bpe.h"

#include <algorithm>
#include <functional>
#include <string>

#include "base/units.h"
#include "tokenizer/utf8.h"

namespace ganglion::tokenizer {

namespace {

using base::Code;
using base::Status;

constexpr char kMergesKey[] = "tokenizer.ggml.merges";

// The number of a merge's side or result, which becomes a hidden string if it is no token.
uint32_t find_or_hide(std::string_view text, Vocabulary* vocabulary) {
  const uint32_t id = vocabulary->find(text);
  if (id != kNoId) return id;
  return vocabulary->index.insert(vocabulary->pieces, vocabulary->pieces.add(text));
}

void push(uint32_t rank, int32_t left, std::vector<uint64_t>* queue) {
  queue->push_back(uint64_t{rank} << 32 | static_cast<uint32_t>(left));
}

// Cuts the word into single symbols.
void start_symbols(const BpeModel& model, const Vocabulary& vocabulary, std::string_view word,
                   std::vector<BpeScratch::Symbol>* symbols) {
  symbols->clear();
  for (size_t at = 0; at < word.size();) {
    size_t length = 1;
    uint32_t id;
    if (model.raw_utf8) {
      length = utf8_first(word.substr(at)).length;
      id = vocabulary.find(word.substr(at, length));
    } else {
      id = vocabulary.byte_ids[static_cast<uint8_t>(word[at])];
    }
    const auto index = static_cast<int32_t>(symbols->size());
    symbols->push_back({id, static_cast<uint32_t>(at), index - 1, index + 1});
    at += length;
  }
  symbols->back().next = -1;
}

void merge_symbols(const MergeTable& merges, BpeScratch* scratch) {
  auto& symbols = scratch->symbols;
  auto& queue = scratch->queue;
  auto pair_rank = [&](int32_t left, int32_t right) {
    const uint32_t a = symbols[static_cast<size_t>(left)].id;
    const uint32_t b = symbols[static_cast<size_t>(right)].id;
    return a == kNoId || b == kNoId ? kNoId : merges.find(a, b);
  };
  queue.clear();
  for (size_t i = 1; i < symbols.size(); ++i) {
    const auto right = static_cast<int32_t>(i);
    if (const uint32_t rank = pair_rank(right - 1, right); rank != kNoId) push(rank, right - 1, &queue);
  }
  std::make_heap(queue.begin(), queue.end(), std::greater<>());
  while (!queue.empty()) {
    std::pop_heap(queue.begin(), queue.end(), std::greater<>());
    const uint64_t top = queue.back();
    queue.pop_back();
    const MergeTable::Merge& merge = merges[static_cast<uint32_t>(top >> 32)];
    const auto left_index = static_cast<int32_t>(top & 0xFFFFFFFF);
    BpeScratch::Symbol& left = symbols[static_cast<size_t>(left_index)];
    // Entries are not taken back when a neighbour merges; one that no longer describes its pair is skipped
    // here.
    if (left.id != merge.left || left.next < 0) continue;
    BpeScratch::Symbol& right = symbols[static_cast<size_t>(left.next)];
    if (right.id != merge.right) continue;
    left.id = merge.result;
    left.next = right.next;
    right.id = kNoId;
    right.next = -1;
    if (left.next >= 0) symbols[static_cast<size_t>(left.next)].previous = left_index;
    if (left.previous >= 0) {
      if (const uint32_t rank = pair_rank(left.previous, left_index); rank != kNoId) {
        push(rank, left.previous, &queue);
        std::push_heap(queue.begin(), queue.end(), std::greater<>());
      }
    }
    if (left.next >= 0) {
      if (const uint32_t rank = pair_rank(left_index, left.next); rank != kNoId) {
        push(rank, left_index, &queue);
        std::push_heap(queue.begin(), queue.end(), std::greater<>());
      }
    }
  }
}

// What is no token is written byte by byte. A byte without a token is left out: the unknown token of these
// vocabularies, if any, is one that ends or frames a text.
void append_bytes(const Vocabulary& vocabulary, std::string_view bytes, std::vector<int32_t>* ids) {
  for (char c : bytes) {
    const uint32_t id = vocabulary.byte_ids[static_cast<uint8_t>(c)];
    if (vocabulary.is_token(id)) ids->push_back(static_cast<int32_t>(id));
  }
}

}  // namespace

Status load_merges(const base::Metadata& metadata, BpeModel* model, Vocabulary* vocabulary) {
  auto array = metadata.string_array(kMergesKey);
  if (!array.ok()) return array.status();
  const base::Value* value = array.value();
  if (value == nullptr) {
    return Status(Code::kModelFile, base::format("metadata key '%s' is missing", kMergesKey));
  }
  if (value->count >= INT32_MAX / 2) {
    return Status(Code::kModelFile, base::format("metadata key '%s' has %llu entries, more than can be read",
                                                 kMergesKey, static_cast<unsigned long long>(value->count)));
  }
  model->merges.reserve(static_cast<size_t>(value->count));
  base::StringArrayReader reader(*value);
  std::string left;
  std::string right;
  std::string_view text;
  for (uint64_t i = 0; reader.next(&text); ++i) {
    const size_t space = text.find(' ', 1);
    if (text.size() < 3 || space == std::string_view::npos || space + 1 == text.size()) {
      return Status(Code::kModelFile,
                    base::format("metadata key '%s': entry %llu is not two parts with a space "
                                 "between",
                                 kMergesKey, static_cast<unsigned long long>(i)));
    }
    if (model->raw_utf8) {
      left = unescape_spaces(text.substr(0, space));
      right = unescape_spaces(text.substr(space + 1));
    } else if (!try_decode_byte_alphabet(text.substr(0, space), &left) ||
               !try_decode_byte_alphabet(text.substr(space + 1), &right)) {
      // Characters outside the byte alphabet never come up, so neither does this merge.
      left = right = "";
      model->merges.add({kNoId, kNoId, kNoId});
      continue;
    }
    const uint32_t left_id = find_or_hide(left, vocabulary);
    const uint32_t right_id = find_or_hide(right, vocabulary);
    model->merges.add({left_id, right_id, find_or_hide(left + right, vocabulary)});
  }
  return base::ok_status();
}

void bpe_encode_word(const BpeModel& model, const Vocabulary& vocabulary, std::string_view word,
                     BpeScratch* scratch, std::vector<int32_t>* ids) {
  if (word.empty()) return;
  if (model.ignore_merges || (model.raw_utf8 && word.front() == '\n')) {
    const uint32_t id = vocabulary.find(word);
    if (vocabulary.is_token(id)) {
      ids->push_back(static_cast<int32_t>(id));
      return;
    }
  }
  start_symbols(model, vocabulary, word, &scratch->symbols);
  merge_symbols(model.merges, scratch);
  const auto& symbols = scratch->symbols;
  for (int32_t at = 0; at >= 0; at = symbols[static_cast<size_t>(at)].next) {
    const BpeScratch::Symbol& symbol = symbols[static_cast<size_t>(at)];
    if (vocabulary.is_token(symbol.id)) {
      ids->push_back(static_cast<int32_t>(symbol.id));
    } else {
      const size_t end = symbol.next < 0 ? word.size() : symbols[static_cast<size_t>(symbol.next)].begin;
      append_bytes(vocabulary, word.substr(symbol.begin, end - symbol.begin), ids);
    }
  }
}

}  // namespace ganglion::tokenizer

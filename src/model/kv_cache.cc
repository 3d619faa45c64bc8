#include "model/kv_cache.h"

#include <algorithm>
#include <cstring>

#include "base/units.h"

namespace ganglion::model {

using base::Code;
using base::Status;
using kernels::KvType;
using model_config::LayerConfig;
using model_config::ModelConfig;

size_t kv_row_bytes(KvType type, uint32_t dims) {
  switch (type) {
    case KvType::kF32:
      return size_t{4} * dims;
    case KvType::kF16:
      return size_t{2} * dims;
    case KvType::kQ8_0:
      return size_t{dims} / 32 * 34;
  }
  return 0;
}

KvLayout kv_layout(const ModelConfig& config, const LayerConfig& layer, KvType type) {
  KvLayout layout;
  layout.type = type;
  layout.kv_heads = layer.kv_heads;
  layout.key_dims = config.key_dims;
  layout.value_dims = config.value_dims;
  layout.value_in_key = config.mla.kv_rank > 0;
  layout.key_bytes = kv_row_bytes(type, config.key_dims);
  layout.value_bytes = kv_row_bytes(type, config.value_dims);
  const size_t per_position = layout.key_bytes + (layout.value_in_key ? 0 : layout.value_bytes);
  layout.page_bytes = base::round_up(size_t{layer.kv_heads} * kPagePositions * per_position, 64);
  return layout;
}

size_t kv_pages_needed(const ModelConfig& config, size_t context, size_t chunk) {
  size_t pages = 0;
  for (const LayerConfig& layer : config.layers) {
    // A window may begin and end inside a page.
    const size_t positions =
        layer.window == 0 ? context : std::min<size_t>(context, layer.window + kRewindPositions + chunk);
    const size_t partial = layer.window == 0 ? 0 : 1;
    pages += std::min(base::ceil_div(positions, kPagePositions) + partial,
                      base::ceil_div(context, kPagePositions));
  }
  return pages;
}

KvPages::KvPages(std::span<uint8_t> memory, size_t page_bytes) : page_bytes_(page_bytes) {
  extend(memory);
}

void KvPages::extend(std::span<uint8_t> memory) {
  GANGLION_CHECK(memory_.empty() || (memory.data() == memory_.data() && memory.size() >= memory_.size()));
  memory_ = memory;
  const size_t old = references_.size();
  const size_t count = memory.size() / page_bytes_;
  references_.resize(count, 0);
  free_.reserve(count);
  for (size_t i = count; i > old; --i) free_.push_back(static_cast<uint32_t>(i - 1));
}

uint32_t KvPages::allocate() {
  if (free_.empty()) return kNoPage;
  const uint32_t page = free_.back();
  free_.pop_back();
  references_[page] = 1;
  return page;
}

void KvPages::release(uint32_t page) {
  GANGLION_DCHECK(references_[page] > 0);
  if (--references_[page] == 0) free_.push_back(page);
}

namespace {

Status no_page_left(size_t count) {
  return Status(Code::kResources,
                base::format("no key-value page is left of %zu - lower the context (-c) or the number of "
                             "sequences",
                             count));
}

}  // namespace

KvSequence::KvSequence(KvPages& pages, const ModelConfig& config, size_t context) : pages_(pages) {
  const size_t table = base::ceil_div(context, kPagePositions);
  for (const LayerConfig& layer : config.layers) {
    windows_.push_back(layer.window);
    tables_.emplace_back(table, kNoPage);
  }
}

KvSequence::~KvSequence() {
  clear();
}

void KvSequence::clear() {
  for (std::vector<uint32_t>& table : tables_) {
    for (uint32_t& page : table) {
      if (page != kNoPage) pages_.release(page);
      page = kNoPage;
    }
  }
  length_ = 0;
}

size_t KvSequence::first_visible(size_t layer, size_t position) const {
  const size_t window = windows_[layer];
  return window == 0 || position < window ? 0 : position + 1 - window;
}

size_t KvSequence::pages_missing(size_t count) const {
  const size_t end = base::ceil_div(length_ + count, kPagePositions);
  size_t missing = 0;
  for (const std::vector<uint32_t>& table : tables_) {
    for (size_t i = length_ / kPagePositions; i < end; ++i) {
      missing += table[i] == kNoPage || pages_.shared(table[i]) ? 1 : 0;
    }
  }
  return missing;
}

Status KvSequence::prepare(size_t count) {
  const size_t first = length_ / kPagePositions;
  const size_t end = base::ceil_div(length_ + count, kPagePositions);
  for (std::vector<uint32_t>& table : tables_) {
    GANGLION_CHECK(end <= table.size());
    for (size_t i = first; i < end; ++i) {
      const uint32_t old = table[i];
      if (old != kNoPage && !pages_.shared(old)) continue;
      const uint32_t fresh = pages_.allocate();
      if (fresh == kNoPage) {
        return no_page_left(pages_.count());
      }
      if (old != kNoPage) {
        std::memcpy(pages_.data(fresh), pages_.data(old), pages_.page_bytes());
        pages_.release(old);
      }
      table[i] = fresh;
    }
  }
  return base::ok_status();
}

void KvSequence::advance(size_t count) {
  length_ += count;
  for (size_t layer = 0; layer < tables_.size(); ++layer) {
    if (windows_[layer] == 0) continue;
    const size_t back = length_ - std::min<size_t>(length_, kRewindPositions);
    const size_t keep = first_visible(layer, back) / kPagePositions;
    for (size_t i = keep; i-- > 0 && tables_[layer][i] != kNoPage;) {
      pages_.release(tables_[layer][i]);
      tables_[layer][i] = kNoPage;
    }
  }
}

bool KvSequence::try_rewind(size_t length) {
  GANGLION_CHECK(length <= length_);
  for (size_t layer = 0; layer < tables_.size() && length > 0; ++layer) {
    if (tables_[layer][first_visible(layer, length) / kPagePositions] == kNoPage &&
        first_visible(layer, length) < length) {
      return false;
    }
  }
  const size_t keep = base::ceil_div(length, kPagePositions);
  for (std::vector<uint32_t>& table : tables_) {
    for (size_t i = keep; i < table.size(); ++i) {
      if (table[i] != kNoPage) pages_.release(table[i]);
      table[i] = kNoPage;
    }
  }
  length_ = length;
  return true;
}

size_t KvSequence::first_page(size_t layer) const {
  size_t page = base::ceil_div(length_, kPagePositions);
  while (page > 0 && tables_[layer][page - 1] != kNoPage) --page;
  return page;
}

Status KvSequence::restore(size_t length, std::span<const size_t> first_pages) {
  const size_t end = base::ceil_div(length, kPagePositions);
  GANGLION_CHECK(length_ == 0 && first_pages.size() == tables_.size());
  clear();
  for (size_t layer = 0; layer < tables_.size(); ++layer) {
    GANGLION_CHECK(end <= tables_[layer].size() && first_pages[layer] <= end);
    for (size_t i = first_pages[layer]; i < end; ++i) {
      const uint32_t page = pages_.allocate();
      if (page == kNoPage) {
        clear();
        return no_page_left(pages_.count());
      }
      tables_[layer][i] = page;
    }
  }
  length_ = length;
  return base::ok_status();
}

void KvSequence::fork_from(const KvSequence& other) {
  GANGLION_CHECK(length_ == 0 && &pages_ == &other.pages_ && tables_.size() == other.tables_.size());
  clear();
  tables_ = other.tables_;
  length_ = other.length_;
  for (const std::vector<uint32_t>& table : tables_) {
    for (const uint32_t page : table) {
      if (page != kNoPage) pages_.add_reference(page);
    }
  }
}

}  // namespace ganglion::model

#include "profile/memory_bandwidth.h"

#include <algorithm>

#include "base/units.h"
#include "platform/clock.h"

namespace ganglion::profile {

namespace {

constexpr size_t kChunkWords = 64 * base::kKiB / sizeof(uint64_t);
constexpr int64_t kRunNs = 300'000'000;

// Many sums, so that none is waited for. (No target_clones: their resolvers run before a sanitizer is set
// up.)
uint64_t read_all(const uint64_t* words, size_t count) {
  uint64_t sums[16] = {};
  for (size_t i = 0; i + 16 <= count; i += 16) {
    for (size_t j = 0; j < 16; ++j) sums[j] += words[i + j];
  }
  uint64_t sum = 0;
  for (const uint64_t part : sums) sum += part;
  return sum;
}

}  // namespace

MemoryReader::MemoryReader(int threads, size_t buffer_bytes)
    : mapping_(buffer_bytes), buffer_(mapping_.as<uint64_t>()), pool_(threads) {
  std::fill(buffer_.begin(), buffer_.end(), uint64_t{1});
}

uint64_t MemoryReader::read(size_t bytes) {
  const size_t count = std::min(bytes / sizeof(uint64_t), buffer_.size() - next_);
  pool_.parallel_for(count, kChunkWords, [&](size_t from, size_t to, int) {
    sink_.fetch_add(read_all(buffer_.data() + next_ + from, to - from), std::memory_order_relaxed);
  });
  next_ = next_ + count == buffer_.size() ? 0 : next_ + count;
  return count * sizeof(uint64_t);
}

double measure_memory_bandwidth(int threads, size_t buffer_bytes) {
  MemoryReader reader(threads, buffer_bytes);
  double best = 0;
  const int64_t start = platform::now_ns();
  while (platform::now_ns() - start < kRunNs) {
    const int64_t begin = platform::now_ns();
    const auto bytes = static_cast<double>(reader.read(buffer_bytes));
    best = std::max(best, bytes * 1e9 / static_cast<double>(platform::now_ns() - begin));
  }
  return best;
}

}  // namespace ganglion::profile

#include "profile/memory_bandwidth.h"

#include <cstdint>
#include <vector>

#include "base/units.h"
#include "platform/clock.h"
#include "platform/threads.h"

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

double measure_memory_bandwidth(int threads, size_t buffer_bytes) {
  std::vector<uint64_t> buffer(buffer_bytes / sizeof(uint64_t), 1);
  platform::ThreadPool pool(threads);
  std::atomic<uint64_t> sink{0};
  double best = 0;
  const int64_t start = platform::now_ns();
  while (platform::now_ns() - start < kRunNs) {
    const int64_t begin = platform::now_ns();
    pool.parallel_for(buffer.size(), kChunkWords, [&](size_t from, size_t to, int) {
      sink.fetch_add(read_all(buffer.data() + from, to - from), std::memory_order_relaxed);
    });
    const double rate =
        static_cast<double>(buffer_bytes) * 1e9 / static_cast<double>(platform::now_ns() - begin);
    if (rate > best) best = rate;
  }
  return best;
}

}  // namespace ganglion::profile

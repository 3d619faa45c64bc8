#include "expert_cache_simulator/simulate.h"

#include <sys/mman.h>

#include <algorithm>
#include <iterator>
#include <list>
#include <set>

#include "base/check.h"

namespace ganglion::simulator {

using neuron_cache::BlockCache;
using neuron_cache::BlockId;
using neuron_cache::BlockState;

namespace {

constexpr size_t kSlotBytes = 4096;

/// Address space that nobody touches.
class Slots {
 public:
  explicit Slots(size_t count) : bytes_(count * kSlotBytes) {
    void* data = ::mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    GANGLION_CHECK(data != MAP_FAILED);
    data_ = static_cast<uint8_t*>(data);
  }
  ~Slots() { ::munmap(data_, bytes_); }
  Slots(const Slots&) = delete;
  Slots& operator=(const Slots&) = delete;
  std::span<uint8_t> memory() const { return {data_, bytes_}; }

 private:
  size_t bytes_;
  uint8_t* data_;
};

/// What forward_experts.cc and multiply.cc do with the cache, where every read completes before the next wait
/// ends.
class EngineReplay {
 public:
  EngineReplay(const Trace& trace, uint32_t cache_experts, const neuron_cache::EvictionOptions& options)
      : trace_(trace),
        slots_(size_t{cache_experts} * kBlocksPerExpert),
        cache_(0, groups(trace), trace.groups(), kSlotBytes, options) {
    GANGLION_CHECK(cache_.try_set_memory(slots_.memory()));
  }

  Misses run() {
    for (const Step& step : trace_.steps) {
      if (step.begins_pass) cache_.tick();
      for (size_t i = 0; i < step.experts.size(); ++i) cache_.touch_group(trace_.group(step, i));
      request_wave(step);
      ask(step, 0, 2);
      ask(step, 2, 3);
    }
    return misses_;
  }

 private:
  static std::vector<uint32_t> groups(const Trace& trace) {
    std::vector<uint32_t> group_of(size_t{trace.groups()} * kBlocksPerExpert);
    for (uint32_t i = 0; i < group_of.size(); ++i) group_of[i] = i / kBlocksPerExpert;
    return group_of;
  }

  BlockId block(const Step& step, size_t expert, uint32_t matrix) const {
    return trace_.group(step, expert) * kBlocksPerExpert + matrix;
  }

  void request(BlockId id) {
    if (cache_.state(id) != BlockState::kAbsent || cache_.begin_load(id, true) == nullptr) return;
    ++misses_.missed;
    loading_.push_back(id);
  }

  void complete_reads() {
    for (const BlockId id : loading_) cache_.complete(id, true, slots_.memory().data());
    loading_.clear();
  }

  void request_wave(const Step& step) {
    if (2 * step.experts.size() * kBlocksPerExpert > cache_.slot_count()) return;
    for (uint32_t matrix = 0; matrix < kBlocksPerExpert; ++matrix) {
      for (size_t i = 0; i < step.experts.size(); ++i) request(block(step, i, matrix));
    }
  }

  // One set of products: computes what is there, has the rest read, until all is done.
  void ask(const Step& step, uint32_t first_matrix, uint32_t end_matrix) {
    std::vector<BlockId> pending;
    for (size_t i = 0; i < step.experts.size(); ++i) {
      for (uint32_t m = first_matrix; m < end_matrix; ++m) pending.push_back(block(step, i, m));
    }
    misses_.asked += pending.size();
    while (!pending.empty()) {
      std::vector<BlockId> pinned;
      std::vector<BlockId> absent;
      for (const BlockId id : pending)
        (cache_.state(id) == BlockState::kResident ? pinned : absent).push_back(id);
      for (const BlockId id : pinned) cache_.pin(id);
      for (const BlockId id : absent) request(id);
      for (const BlockId id : pinned) cache_.unpin(id);
      complete_reads();
      pending = std::move(absent);
    }
  }

  const Trace& trace_;
  Slots slots_;
  BlockCache cache_;
  std::vector<BlockId> loading_;
  Misses misses_;
};

}  // namespace

Misses simulate_engine(const Trace& trace, uint32_t cache_experts,
                       const neuron_cache::EvictionOptions& options) {
  return EngineReplay(trace, cache_experts, options).run();
}

Misses simulate_lru(const Trace& trace, uint32_t cache_experts) {
  Misses misses;
  std::list<uint32_t> recent;  // Latest first.
  std::vector<std::list<uint32_t>::iterator> place(trace.groups(), recent.end());
  for (const Step& step : trace.steps) {
    misses.asked += step.experts.size() * kBlocksPerExpert;
    for (size_t i = 0; i < step.experts.size(); ++i) {
      const auto at = place[trace.group(step, i)];
      if (at != recent.end()) recent.splice(recent.begin(), recent, at);
    }
    for (size_t i = 0; i < step.experts.size(); ++i) {
      const uint32_t group = trace.group(step, i);
      if (place[group] != recent.end()) continue;
      misses.missed += kBlocksPerExpert;
      if (recent.size() == cache_experts) {
        place[recent.back()] = recent.end();
        recent.pop_back();
      }
      recent.push_front(group);
      place[group] = recent.begin();
    }
  }
  return misses;
}

Misses simulate_optimum(const Trace& trace, uint32_t cache_experts) {
  // By step and expert: the step of the next use.
  std::vector<std::vector<size_t>> next_use(trace.steps.size());
  std::vector<size_t> next(trace.groups(), SIZE_MAX);
  for (size_t s = trace.steps.size(); s-- > 0;) {
    for (size_t i = 0; i < trace.steps[s].experts.size(); ++i) {
      size_t& of_group = next[trace.group(trace.steps[s], i)];
      next_use[s].push_back(of_group);
      of_group = s;
    }
  }
  Misses misses;
  std::set<std::pair<size_t, uint32_t>> by_next;  // Of what is cached: step of the next use, group.
  std::vector<size_t> absent;
  for (size_t s = 0; s < trace.steps.size(); ++s) {
    const Step& step = trace.steps[s];
    misses.asked += step.experts.size() * kBlocksPerExpert;
    absent.clear();
    for (size_t i = 0; i < step.experts.size(); ++i) {
      // What is cached stands under its next use, and that is now.
      if (by_next.erase({s, trace.group(step, i)}) == 0) {
        absent.push_back(i);
      } else {
        by_next.emplace(next_use[s][i], trace.group(step, i));
      }
    }
    for (const size_t i : absent) {
      misses.missed += kBlocksPerExpert;
      if (by_next.size() == cache_experts) by_next.erase(std::prev(by_next.end()));
      by_next.emplace(next_use[s][i], trace.group(step, i));
    }
  }
  return misses;
}

}  // namespace ganglion::simulator

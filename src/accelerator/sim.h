// A test double of an accelerator with the constraints of a phone's: static graphs, immutable weights, few
// graphs at a time, latency and rate as set, completion on another thread and out of order across queues,
// faults on request. Buffers fault where the processor touches them outside an access. It computes with a
// kernel table, so results are the processor's bit for bit. It says nothing about any device's speed.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <variant>
#include <vector>

#include "accelerator/backend.h"
#include "accelerator/sim_compute.h"
#include "accelerator/sim_memory.h"

namespace ganglion::accelerator {

/// Two windows of 1 GiB with a queue each, and a third queue on the first; buckets of 1, 2, 4, 8 (FFN) and
/// 32, 128 (MatMul); common formats.
Capabilities sim_capabilities();

struct SimOptions {
  Capabilities capabilities = sim_capabilities();
  /// Virtual: time is what advance() and wait() make of it: wait() steps to the next completion. Real: the
  /// system's monotonic clock.
  bool virtual_clock = true;
  int64_t latency_ns = 0;         ///< Of a submission,
  uint64_t bytes_per_second = 0;  ///< and per byte of weights; 0: no time.
  const kernels::KernelTable* kernels = &kernels::reference_table();
  std::vector<Operation> broken;  ///< These compute wrongly.
};

struct SimFault {
  enum class Kind : uint8_t { kFail, kHang, kLoseDevice };
  Kind kind = Kind::kFail;
  uint64_t submission = 1;  ///< Counted from 1 over all queues.
};

struct SimStats {
  uint64_t submissions = 0;
  uint64_t prepared = 0;
  uint64_t blocks = 0;  ///< Added.
};

class Sim final : public Backend {
 public:
  explicit Sim(SimOptions options);
  ~Sim() override;

  void inject(const SimFault& fault);
  /// Virtual clock: all that is due by then has ended when this returns.
  void advance(int64_t ns);
  SimStats stats() const;

  const Capabilities& capabilities() const override { return options_.capabilities; }
  base::Result<BufferId> create_buffer(const BufferOptions& options) override;
  void destroy_buffer(BufferId id) override;
  base::Result<std::span<uint8_t>> begin_access(BufferId id, Access access) override;
  base::Status end_access(BufferId id) override;
  base::Status define_layer(const FfnLayer& layer) override;
  base::Status add_block(uint32_t layer, const FfnBlock& block) override;
  void remove_layer(uint32_t layer) override;
  base::Result<GraphId> prepare(const FfnShape& shape) override;
  base::Result<GraphId> prepare(const MatmulShape& shape) override;
  void release(GraphId id) override;
  base::Result<Ticket> submit(uint32_t queue, const Submission& submission) override;
  Outcome poll(uint32_t queue, Ticket ticket) override;
  Outcome wait(uint32_t queue, Ticket ticket, int64_t deadline_ns) override;
  int64_t now_ns() const override;
  void abandon() override;
  bool lost() const override;

 private:
  using Lock = std::unique_lock<std::mutex>;
  struct Buffer {
    SimMemory memory;
    uint64_t bytes;
    uint32_t window;
    bool open = false;
    uint32_t blocks = 0;   // rows of blocks that lie here
    uint32_t pending = 0;  // submissions that touch it
  };
  struct Layer {
    FfnLayer info;
    std::vector<BlockRows> rows;
    std::vector<FfnBlock> blocks;
    uint32_t window = 0;
    uint32_t graphs = 0;
  };
  struct Graph {
    std::variant<FfnCompute, MatmulCompute> compute;
    uint32_t layer;  // of FFN
    uint32_t window;
    bool any_window;
    uint64_t weight_bytes;
    uint64_t x_bytes;
    uint64_t out_bytes;
    bool broken;
    uint32_t pending = 0;
  };
  struct Job {
    Graph* graph = nullptr;
    Buffer* buffers[3] = {};
    const float* x = nullptr;
    float* out = nullptr;
    const uint8_t* weights = nullptr;
    int64_t due_ns = 0;
    bool computed = false;
    Outcome at_end = Outcome::kDone;  // kDeviceLost: takes the device along
    Outcome outcome = Outcome::kPending;
  };
  struct Queue {
    std::vector<Job> ring;  // ticket t lies at t % depth
    Ticket last = 0;
    Ticket ended = 0;
    int64_t busy_until_ns = 0;
  };

  Buffer& buffer(BufferId id);
  uint8_t* place(const BufferRange& range, uint64_t bytes, uint32_t alignment, Buffer** in);
  base::Result<const uint8_t*> place_rows(const Rows& rows, uint64_t row_bytes, const Layer& layer,
                                          uint32_t* window);
  base::Result<GraphId> add_graph(Graph graph);
  bool is_broken(const Operation& operation) const;
  int64_t now_locked() const;
  Job* earliest(bool uncomputed, size_t* queue);
  void apply_fault(Job* job);
  void end(Queue& queue, Outcome outcome);
  void lose(Lock& lock);
  void settle(Lock& lock);
  static void compute(Job& job);
  void work();

  SimOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable work_changed_;
  std::condition_variable jobs_changed_;
  std::map<uint32_t, std::unique_ptr<Buffer>> buffers_;
  std::map<uint32_t, Layer> layers_;
  std::map<uint32_t, std::unique_ptr<Graph>> graphs_;
  std::vector<Queue> queues_;
  std::vector<SimFault> faults_;
  SimStats stats_;
  uint32_t next_id_ = 1;
  int64_t virtual_now_ns_ = 0;
  bool computing_ = false;
  bool lost_ = false;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace ganglion::accelerator

// The Backend of opencl.h. In opencl.cc: devices, buffers, layers, graphs; in opencl_queue.cc: submissions.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "accelerator/backend.h"
#include "accelerator/opencl.h"
#include "accelerator/opencl_device.h"
#include "accelerator/opencl_graph.h"
#include "accelerator/opencl_programs.h"
#include "accelerator/opencl_wake.h"

namespace ganglion::accelerator {

/// Lock order: mutex_, then those of OpenclPrograms and OpenclWake. No call that may take long is made under
/// mutex_.
class Opencl final : public Backend {
 public:
  static base::Result<std::unique_ptr<Backend>> open(const OpenclDevice& device,
                                                     std::vector<OpenclFault> faults);
  ~Opencl() override;

  const Capabilities& capabilities() const override { return capabilities_; }
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
  bool lost() const override { return lost_; }

 private:
  using Lock = std::unique_lock<std::mutex>;
  struct Buffer {
    ClMem mem;
    uint64_t bytes = 0;
    void* mapped = nullptr;
    bool open = false;
    uint32_t blocks = 0;   // rows of blocks that lie here
    uint32_t pending = 0;  // submissions that touch it
  };
  struct Layer {
    FfnLayer info;
    std::vector<FfnBlock> blocks;
    uint32_t graphs = 0;
  };
  struct Job {
    OpenclGraph* graph = nullptr;
    Buffer* buffers[3] = {};
    ClEvent done;  // kept where the device was lost before it ended
    Outcome outcome = Outcome::kPending;
  };

  Opencl(const OpenclDevice& device, std::vector<OpenclFault> faults);

  Buffer& buffer(BufferId id);
  base::Status check_rows(const Rows& rows, uint64_t row_bytes, uint32_t neurons);
  OpenclPlace place(const BufferRange& range, uint64_t bytes, Buffer** in);
  base::Result<void*> map(cl_mem mem, cl_map_flags flags, uint64_t bytes);
  base::Status unmap(cl_mem mem, void* mapped);
  base::Status await(const ClEvent& event);
  base::Result<GraphId> warm_up_and_add(OpenclGraph graph);
  base::Status fail(const char* what, cl_int error);

  // Of submissions; under mutex_.
  const OpenclFault* fault_of(Ticket ticket) const;
  cl_int start(const OpenclGraph& graph, const OpenclPlaces& places, cl_event* done);
  void refresh();
  void end(Job& job, Outcome outcome);
  void lose();
  bool everything_ended() const;

  OpenclDevice device_;
  Capabilities capabilities_;
  ClContext context_;
  ClQueue compute_;
  ClQueue access_;  // Maps do not wait for what is computed,
  ClQueue warm_;    // nor do first starts of kernels.
  std::unique_ptr<OpenclPrograms> programs_;
  std::atomic<bool> lost_{false};

  mutable std::mutex mutex_;
  std::map<uint32_t, std::unique_ptr<Buffer>> buffers_;
  std::map<uint32_t, Layer> layers_;
  std::map<uint32_t, std::unique_ptr<OpenclGraph>> graphs_;
  uint64_t used_bytes_ = 0;
  uint32_t next_id_ = 1;
  std::vector<Job> ring_;  // ticket t lies at t % depth
  Ticket last_ = 0;
  Ticket ended_ = 0;
  std::vector<OpenclFault> faults_;
  std::vector<ClEvent> held_;  // by faults
  OpenclWake* wake_;
};

}  // namespace ganglion::accelerator

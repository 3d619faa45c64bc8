#include "profile/disk_sampler.h"

#include <vector>

#include "base/units.h"
#include "platform/clock.h"

namespace ganglion::profile {

using base::Code;
using base::Result;
using base::Status;

namespace {
// About as much as is computed between two looks at what has been read.
constexpr size_t kMemoryBytesAtOnce = 2 * base::kMiB;
}  // namespace

Result<DiskSample> DiskSampler::run_beside(const DiskCase& reads, int64_t duration_ns, MemoryReader* reader,
                                           double* memory_bytes_per_s) {
  reads_ = reads;
  places_ = file_.size() / reads.bytes;
  if (places_ == 0)
    return Status(Code::kInvalidArgument, "'" + file_.path() + "' is too small to measure with");
  std::vector<async_io::ReadOp> ops(static_cast<size_t>(reads.depth));
  deadline_ns_ = platform::now_ns() + duration_ns;
  const int64_t start = platform::now_ns();
  const int64_t cpu_start = platform::process_cpu_ns();
  done_bytes_ = 0;
  done_reads_ = 0;
  for (async_io::ReadOp& op : ops) start_read(&op);
  uint64_t memory_bytes = 0;
  while (queue_.in_flight() > 0) {
    if (reader != nullptr) memory_bytes += reader->read(kMemoryBytesAtOnce);
    queue_.poll(reader == nullptr);
  }
  if (!error_.ok()) return error_;
  const double seconds = static_cast<double>(platform::now_ns() - start) / 1e9;
  if (reader != nullptr) *memory_bytes_per_s = static_cast<double>(memory_bytes) / seconds;
  const double cpu_seconds = static_cast<double>(platform::process_cpu_ns() - cpu_start) / 1e9;
  return DiskSample{reads.bytes, reads.depth, reads.sequential, static_cast<double>(done_bytes_) / seconds,
                    cpu_seconds / static_cast<double>(done_reads_)};
}

void DiskSampler::start_read(async_io::ReadOp* op) {
  random_ = random_ * 6364136223846793005ULL + 1442695040888963407ULL;
  const uint64_t place = reads_.sequential ? next_++ % places_ : (random_ >> 20) % places_;
  op->file = &file_;
  op->offset = place * reads_.bytes;
  op->needed = reads_.bytes;
  // Reads end in nearly the order in which they began: none has its memory taken, but for its contents.
  op->memory = memory_.data() + slot_++ % (memory_.size() / reads_.bytes) * reads_.bytes;
  op->context = this;
  op->label = "disk measurement";
  op->done = [](async_io::ReadOp* finished) {
    auto* self = static_cast<DiskSampler*>(finished->context);
    if (!finished->status.ok()) self->error_ = finished->status;
    self->done_bytes_ += finished->needed;
    ++self->done_reads_;
    if (self->error_.ok() && platform::now_ns() < self->deadline_ns_) self->start_read(finished);
  };
  queue_.submit({&op, 1});
}

}  // namespace ganglion::profile

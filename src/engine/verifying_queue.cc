#include "engine/verifying_queue.h"

#include <unordered_map>
#include <vector>

namespace ganglion::engine {

using async_io::ReadOp;

namespace {

class VerifyingQueue final : public async_io::ReadQueue {
 public:
  VerifyingQueue(std::unique_ptr<async_io::ReadQueue> inner, const neuron_store::WeightStore& store,
                 uint32_t shards, const BundleChecks& checks)
      : inner_(std::move(inner)), checks_(checks) {
    for (uint32_t i = 0; i < shards; ++i) shard_of_[&store.file(i)] = i;
  }

  void submit(std::span<ReadOp* const> ops) override {
    for (ReadOp* op : ops) {
      callers_[op] = {op->done, op->context};
      op->done = completed;
      op->context = this;
    }
    inner_->submit(ops);
  }
  size_t poll(bool wait) override { return inner_->poll(wait); }
  size_t in_flight() const override { return inner_->in_flight(); }
  async_io::IoStats stats() const override { return inner_->stats(); }
  std::string_view name() const override { return inner_->name(); }

 private:
  struct Caller {
    void (*done)(ReadOp* op);
    void* context;
  };

  static void completed(ReadOp* op) {
    auto* self = static_cast<VerifyingQueue*>(op->context);
    const auto caller = self->callers_.find(op);
    op->done = caller->second.done;
    op->context = caller->second.context;
    self->callers_.erase(caller);
    const auto shard = self->shard_of_.find(op->file);
    if (op->status.ok() && shard != self->shard_of_.end())
      op->status = self->checks_.check(shard->second, op->offset, {async_io::wanted(*op), op->needed});
    if (op->done != nullptr) op->done(op);
  }

  std::unordered_map<const platform::File*, uint32_t> shard_of_;
  std::unordered_map<ReadOp*, Caller> callers_;
  std::unique_ptr<async_io::ReadQueue> inner_;  // Ends first: its completions use the maps.
  const BundleChecks& checks_;
};

}  // namespace

std::unique_ptr<async_io::ReadQueue> make_verifying_queue(std::unique_ptr<async_io::ReadQueue> inner,
                                                          const neuron_store::WeightStore& store,
                                                          uint32_t shards, const BundleChecks& checks) {
  return std::make_unique<VerifyingQueue>(std::move(inner), store, shards, checks);
}

}  // namespace ganglion::engine

// Matrix products over blocks that may still be on their way: computes what is in memory, in any order of
// blocks, while the rest is read. Each output element is one row's product, so the order never shows in the
// result.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/scratch.h"
#include "kernels/kernel_table.h"
#include "model/weight_map.h"
#include "neuron_store/weight_store.h"
#include "neuron_stream/bundle_stream.h"
#include "neuron_stream/neuron_stream.h"
#include "platform/threads.h"

namespace ganglion::engine {

/// out[t][r] = row r of a matrix slice times row first_row + t * row_step of x, for `tokens` rows.
/// Shapes: out [tokens][out_stride] f32, out_stride >= rows.
struct Product {
  const model::MatrixRef* matrix = nullptr;
  uint32_t slice = 0;
  const ActivationRows* x = nullptr;
  size_t first_row = 0;
  size_t row_step = 1;
  size_t tokens = 0;
  float* out = nullptr;
  size_t out_stride = 0;
  // Rows of bundles: `matrix` is BundleRef::rows and gives the gates; the ups go to `up_out` alike.
  const model::BundleRef* bundle = nullptr;
  float* up_out = nullptr;
  // Of a bundle whose activation is zero for gates up to this: the ups of such gates are not needed, and 0.
  std::optional<float> closed_gate = {};
  neuron_stream::BundleStream::Prefix prefix = {};  ///< The slice's first rows, which are in memory.
};

/// Owned by the engine's thread. No allocation after the first pass.
class Multiplier {
 public:
  /// `store_index` gives each MatrixRef::index its number in the store.
  Multiplier(const kernels::KernelTable& kernels, platform::ThreadPool& threads,
             const neuron_store::WeightStore& store, neuron_stream::NeuronStream& stream,
             std::vector<uint32_t> store_index);

  /// Errors: those of the reads.
  base::Status run(std::span<const Product> products);

  neuron_store::BlockRange blocks(const model::MatrixRef& matrix, uint32_t slice) const {
    return store_.blocks_of(store_index_[matrix.index], slice);
  }

 private:
  struct Pending {
    uint32_t product;
    neuron_store::BlockId block;
  };
  struct Task {
    const Product* product;
    const uint8_t* weights;
    size_t weight_stride;
    uint32_t row_begin;
    uint32_t row_count;
  };
  void add_block(const Product& product, neuron_store::BlockId block, const uint8_t* data);
  void add_rows(const Product& product, const uint8_t* data, size_t stride, uint32_t begin, uint32_t end);
  void compute(const Task& task) const;
  void compute_open_ups(const kernels::MatmulArgs& ups, kernels::MatmulFn matmul, const float* gates,
                        float closed_gate) const;

  const kernels::KernelTable& kernels_;
  platform::ThreadPool& threads_;
  const neuron_store::WeightStore& store_;
  neuron_stream::NeuronStream& stream_;
  std::vector<uint32_t> store_index_;
  std::vector<Pending> pending_;
  std::vector<neuron_store::BlockId> pinned_;
  std::vector<Task> tasks_;
};

}  // namespace ganglion::engine

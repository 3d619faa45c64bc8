// The rows of a model with planted FFN sparsity. Knows no files; any row can be made at any time, on any
// thread, with the same bits.
//
// Construction. All embeddings share a direction u: row = sqrt(D) (c u + s z), z random and orthogonal to u,
// c^2 + s^2 = 1. Each FFN adds to the residual a token's own part, of (growth - 1) times the energy of what
// there was, and on average as much of u as keeps c the same, so that the normalised FFN input is
// x = sqrt(D) (c u + s z) in every layer, with a z that turns slowly from layer to layer.
//   gate row i = b_i / (c sqrt(D)) u + (low-rank + noise) / s: gate_i(x) is normal over tokens, with mean b_i
//                and standard deviation 1, so that it fires with probability Phi(b_i); b_i as in skew.h, in
//                random order.
//   up row i   = the same with a constant b = Phi^-1(0.8) and no low-rank part. So up is positive with
//                probability 0.8, whatever the gate does: under dReLU the gate decides and up prunes a fifth,
//                and each active neuron adds something whose mean is known. Gates fire 1 / 0.8 as often then.
//   down       = random columns; each row is shifted along the mean activations so that the mean output is
//                the wanted multiple of u and nothing else (no other constant direction accumulates).
// Attention adds a twentieth of what the FFN adds, and nothing along u. Routers are random and orthogonal to
// u. Embedding, gate, up, router, value and output rows have exact norms and components along u.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "aligned.h"
#include "base/tensor_type.h"
#include "platform/threads.h"
#include "request.h"
#include "skew.h"

namespace ganglion::synthesize {

enum class Role : uint8_t {
  kEmbedding,
  kNorm,
  kQueryKey,
  kValue,
  kAttentionOut,
  kRouter,
  kGate,
  kUp,
  kDown,
  kHead
};

/// A tensor to write: `slices` matrices of `rows` rows of `row` elements.
struct Declared {
  Role role = Role::kNorm;
  uint32_t layer = 0;
  base::TensorType type = base::TensorType::kF32;
  uint64_t row = 0;
  uint64_t rows = 0;
  uint64_t slices = 1;
};

/// Rank of the dominant part of a gate of `ffn` rows of `dim`.
uint32_t planted_rank(uint64_t dim, uint64_t ffn);

/// Owned by one thread, which calls everything; computes on the pool.
class PlantedRows {
 public:
  PlantedRows(const Request& request, platform::ThreadPool& threads);

  const Skew& gate_skew() const { return skew_; }
  double gate_per_active() const { return gate_per_active_; }

  /// The slice whose rows come next. `number` is the tensor's place in the file.
  void begin_slice(const Declared& tensor, uint64_t number, uint64_t slice);
  /// Rows [begin, begin + count) of it, encoded one after the other.
  void write_rows(uint64_t begin, uint64_t count, std::span<uint8_t> out);

 private:
  struct Buffers {
    std::vector<float> rows;      // [kGroup][row]
    std::vector<float> low_rank;  // [kGroup][row], gates only
    AlignedBytes components;      // [kGroup] rows of `rank_` floats, as kernels read them
  };
  void write_group(uint64_t begin, uint64_t count, Buffers& buffers, uint8_t* out);
  void add_low_rank(uint64_t begin, uint64_t count, Buffers& buffers);
  void finish_row(uint64_t index, std::span<float> row) const;
  void prepare_gate();
  void prepare_down();
  double growth_before() const;
  float deviation() const;
  uint64_t row_seed(uint64_t index) const;

  const Shape shape_;
  const bool drelu_;
  const uint64_t seed_;
  platform::ThreadPool& threads_;
  double gate_per_active_ = 1;
  Skew skew_;
  std::vector<float> sorted_offsets_;       // [F], ascending
  std::vector<float> along_;                // [D]: u, of norm 1
  double route_energy_ = 1;                 // sum of the squares of a token's expert weights, on average
  std::vector<Buffers> buffers_;            // by thread
  uint32_t rank_ = 0;                       // of the gates' dominant part
  std::vector<float> component_deviation_;  // [rank]
  float noise_ = 0;                         // norm of a gate row's other part, of the whole

  // Of the current slice.
  Declared tensor_;
  uint64_t slice_seed_ = 0;
  float noise_down_ = 1;                // deviation of random elements of down
  std::vector<float> offsets_;          // [F]: b_i, gate and down
  std::vector<float> basis_;            // [D][rank]
  std::vector<float> mean_activation_;  // [F]: down only
  double mean_energy_ = 0;              // of mean_activation_
  double mean_along_ = 0;               // how much of u the mean output has
};

}  // namespace ganglion::synthesize

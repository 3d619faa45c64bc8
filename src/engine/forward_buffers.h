// The buffers of a forward pass and their shapes. T: rows of a chunk; R: rows of an expert wave, max(T,
// experts used).
#pragma once

#include <initializer_list>

#include "engine/forward.h"

namespace ganglion::engine {

/// The forms that a group of matrices reads; absent ones read none.
inline FormSet forms_of(std::initializer_list<const model::MatrixRef*> matrices) {
  FormSet forms;
  for (const model::MatrixRef* matrix : matrices) {
    if (matrix->present()) forms.add(matrix->type);
  }
  return forms;
}

/// The forms that the matrices behind the FFN's norm read.
inline FormSet ffn_forms(const model::LayerWeights& w) {
  FormSet forms = forms_of({&w.gate, &w.up, &w.gate_up, &w.router, &w.expert_gate, &w.expert_up,
                            &w.bundle.gates, &w.bundle.rows, &w.bundle.predict_low});
  if (w.bundle.present()) forms.add(w.bundle.up_type);
  return forms;
}

/// x += bias, or nothing if there is none.
inline void add_bias(const float* bias, size_t n, float* x) {
  if (bias == nullptr) return;
  for (size_t i = 0; i < n; ++i) x[i] += bias[i];
}

struct ForwardPass::Buffers {
  float* hidden = nullptr;  // [T][D]
  ActivationRows normed;    // [T][D]
  float* qkv = nullptr;     // [T][qkv_stride]: queries, keys, values of all heads
  size_t qkv_stride = 0;
  ActivationRows attended;        // [T][H * value]
  float* projected = nullptr;     // [T][D]
  size_t ffn_rows = 0;            // R
  ActivationRows ffn;             // [R][widest F]: gate, then the activated product
  float* up = nullptr;            // [R][ffn.float_stride()]
  float* gate_up = nullptr;       // [T][2F], fused only
  float* angles = nullptr;        // [T][angle_stride]
  float* angles_local = nullptr;  // [T][angle_stride]
  size_t angle_stride = 0;
  uint8_t* embedding_rows = nullptr;  // [T][embedding_stride], aligned for direct reads
  size_t embedding_stride = 0;
  ActivationRows final_normed;  // [logit_rows][D]
  float* logits = nullptr;      // [logit_rows][V]

  // Mixture of experts.
  float* router_logits = nullptr;         // [T][E]
  float* router_scratch = nullptr;        // [T][E]
  model::Routed* routed = nullptr;        // [T][used]
  uint32_t* by_expert = nullptr;          // [T * used]: entries of `routed`, by expert, then row
  uint32_t* place_of = nullptr;           // [T * used]: the inverse
  uint32_t* expert_begin = nullptr;       // [E + 1]: where an expert's entries begin in by_expert
  ActivationRows gathered;                // [R][D]
  ActivationRows ahead;                   // [1][D]: a layer's FFN input, guessed; also of packs
  model::Routed* ahead_routed = nullptr;  // [used]
  float* expert_out = nullptr;            // [R][D]

  // Sparse FFN of packs. S: rows of a sparse pass; U: experts that they are routed to (1 for a dense FFN); F:
  // neurons of an expert.
  struct Active {
    const uint8_t* data;  // the bundle, once it is in memory (and stays there while it is needed)
    uint32_t unit;
    uint32_t neuron;  // in pack order
    uint32_t rows;    // mask of the rows that it is predicted for
    uint32_t group;
    bool computed;  // its values are there
  };
  // Neurons whose down rows have a sum of their own. Small groups where neurons are frequent, so that all
  // take threads about as long; all neurons of a group lie in one tile.
  static constexpr uint32_t group_size(uint32_t neuron) {
    return neuron < 1024 ? 128 : neuron < 4096 ? 256 : 1024;
  }
  static constexpr uint32_t group_of(uint32_t neuron) {
    if (neuron < 1024) return neuron / 128;
    return neuron < 4096 ? 4 + neuron / 256 : 16 + neuron / 1024;
  }
  struct Group {
    uint32_t begin = 0;  // entries [begin, end)
    uint32_t end = 0;
    uint32_t done = 0;   // those before it are in the sum
    uint32_t ready = 0;  // how many are there and not computed
    uint32_t unit = 0;
    bool hot = false;
  };
  struct Sparse {
    Prediction now;
    Prediction ahead;                     // A guess before attention, for one row.
    float* unit_weight = nullptr;         // [U][S]
    const uint8_t** rank_rows = nullptr;  // [rank]
    uint32_t* masks = nullptr;            // [U][F]
    uint32_t* tile_begin = nullptr;       // [U * tiles + 1]
    Active* active = nullptr;             // [U * F]: by unit, then neuron
    size_t active_count = 0;
    size_t requested = 0;         // entries before it are in memory or on their way
    uint32_t* waiting = nullptr;  // [U * F]: entries whose bundles are on their way
    size_t waiting_count = 0;
    Group* groups = nullptr;  // of each unit, ascending, then a hot one for each unit
    size_t group_count = 0;
    size_t begun = 0;           // groups before it are complete
    size_t added = 0;           // groups before it have been added to the output
    float* sums = nullptr;      // [sum_rows][D]: those of a group's rows lie together
    size_t sum_rows = 0;        // at least S
    uint32_t* tasks = nullptr;  // [groups + 1]: where the parts of threads begin
    size_t task_count = 0;
    float* values = nullptr;       // [U * F][S]: what scales each down row
    uint32_t* wanted = nullptr;    // [F + 1]
    float* hot_out = nullptr;      // [U][S][D]: sums of hot neurons, where a device is to be replaced
    uint32_t* hot_sets = nullptr;  // [U]
    size_t capacity = 0;           // U * F
    size_t rows = 0;               // S
  };
  Sparse sparse;
  bool is_hot(const Active& neuron) const { return neuron.neuron < sparse.now.units[neuron.unit].hot; }
  static Sparse lay_out_sparse(const ForwardContext& context, ScratchAllocator& scratch);
  /// Neurons that a thread lists at a time.
  static constexpr size_t kNeuronTile = 1024;

  // Multi-head latent attention.
  ActivationRows q_low;     // [T][q_rank]
  float* q_full = nullptr;  // [T][H][nope + rope]
  float* kv_low = nullptr;  // [T][kv_rank + rope]
  ActivationRows q_nope;    // [T * H][nope]
  ActivationRows latent;    // [T * H][kv_rank]

  /// Counting sort of the first `entries` of `routed` into by_expert, place_of and expert_begin.
  void sort_by_expert(size_t experts, size_t entries);
};

// Calls body(begin, end) for all tasks on all threads, up to `at_once` at a time. Handing prepared reads to
// the kernel takes its time: this thread does that first, while the others work. (The same thread submits and
// polls: the kernel then need not interrupt another one at each completion.)
template <typename Body>
void ForwardPass::submit_beside(size_t tasks, size_t at_once, Body&& body) {
  bool to_submit = context_.bundles->has_prepared();
  const auto submit = [&] {
    if (to_submit) context_.bundles->submit();
    to_submit = false;
  };
  context_.threads->parallel_for_runs(tasks, at_once, [&](size_t begin, size_t end, int thread) {
    if (thread == 0) submit();
    body(begin, end);
  });
  submit();
}

}  // namespace ganglion::engine

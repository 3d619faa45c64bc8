// The forward pass: rows of tokens in, logits out. The only place that waits for weights.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "async_io/read_queue.h"
#include "base/status.h"
#include "engine/hot_clusters.h"
#include "engine/multiply.h"
#include "engine/open_gates.h"
#include "engine/scratch.h"
#include "engine/trial.h"
#include "ganglion/engine.h"
#include "ganglion/session.h"
#include "kernels/kernel_table.h"
#include "model/attention.h"
#include "model/kv_cache.h"
#include "model/rope.h"
#include "model/router.h"
#include "model/weight_map.h"
#include "model_config/model_config.h"

namespace ganglion::engine {

/// One token at one position of a sequence. Rows of one sequence stand in ascending order.
struct Row {
  int32_t token = 0;
  size_t position = 0;
  model::KvSequence* sequence = nullptr;
  bool wants_logits = false;
};

/// Receives what a pass computes, on the thread that runs it.
class PassSink {
 public:
  virtual ~PassSink() = default;
  /// Logits [V] of row `row`, valid during the call.
  virtual void logits(size_t row, std::span<const float> logits) = 0;
  /// The last row's input of each layer, then its output of the final norm [D] (where logits are wanted).
  virtual void hidden(size_t /*layer*/, std::span<const float> /*hidden*/) {}
  /// The normalised input [D] of a layer's FFN for row `row`, valid during the call.
  virtual void ffn_input(size_t /*layer*/, size_t /*row*/, std::span<const float> /*x*/) {}
  /// The experts of row `row` in an MoE layer.
  virtual void routed(size_t /*layer*/, size_t /*row*/, std::span<const model::Routed> /*routed*/) {}
};

/// How rows are evaluated. Sparse passes take a pack's predicted neurons alone; elsewhere all passes are
/// exact.
struct PassMode {
  bool exact = true;
  // What the pass after this one will be, for read-ahead.
  bool next_exact = true;
  bool next_output = true;
};

/// Rows of a sparse pass at most: each has a bit in a mask.
inline constexpr size_t kSparseRows = 32;

/// Everything that a pass computes with; owned by the runtime.
struct ForwardContext {
  const model_config::ModelConfig* config = nullptr;
  const model::WeightMap* weights = nullptr;
  const kernels::KernelTable* kernels = nullptr;
  platform::ThreadPool* threads = nullptr;
  neuron_stream::NeuronStream* stream = nullptr;
  neuron_stream::BundleStream* bundles = nullptr;  ///< Null: no pack.
  HotClusters* hot = nullptr;                      ///< Null: no device computes hot neurons.
  bool with_device = false;                        ///< Whether one will.
  async_io::ReadQueue* queue = nullptr;
  Multiplier* multiplier = nullptr;
  const neuron_store::WeightStore* store = nullptr;
  /// Floats of each vector, by VectorRef::index.
  std::span<const float* const> vectors = {};
  /// Of packed layers without a predictor: the gates that sparse passes take.
  std::span<const OpenGates> open_gates = {};
  /// Of packed layers: the original number of each neuron, [E][F] in pack order; null elsewhere.
  std::span<const uint16_t* const> orders = {};
  // The embedding on storage.
  base::TensorType embedding_type = base::TensorType::kF32;
  uint32_t embedding_shard = 0;
  uint64_t embedding_offset = 0;
  kernels::KvType kv_type = kernels::KvType::kF16;
  size_t chunk = 0;  ///< Rows that the first scratch has room for.
  size_t logit_rows = 1;
  SparseParts sparse_parts = SparseParts::kAll;
  size_t context = 0;  ///< Decides between long and short rope factors.
};

class ForwardPass {
 public:
  /// Bytes of scratch for passes of up to `rows` rows.
  static size_t scratch_bytes(const ForwardContext& context, size_t rows);

  ForwardPass(const ForwardContext& context, std::span<uint8_t> scratch);
  /// From the next pass on, of up to `rows` rows.
  void use_scratch(size_t rows, std::span<uint8_t> scratch);
  size_t most_rows() const { return context_.chunk; }
  /// Whether reading likely experts or neurons ahead was found to pay when last tried.
  bool look_ahead_pays() const { return look_ahead_.pays(); }
  /// Null: nobody.
  void set_routing_sink(RoutingSink* sink);
  /// Sparse passes compute all neurons and add what predictors found, by layer. Null: nobody.
  void set_recall_sink(std::vector<NeuronRecall>* layers);
  ~ForwardPass();

  /// Evaluates up to most_rows() rows (kSparseRows in a sparse pass) whose KV positions are prepared. Stops
  /// with kCancelled between layers once `*cancel` is set. Errors: those of reads. After an error the rows'
  /// KV positions are unspecified.
  base::Status run(std::span<const Row> rows, const PassMode& mode, const std::atomic<bool>* cancel,
                   PassSink* sink);

 private:
  struct Buffers;
  static Buffers lay_out(const ForwardContext& context, ScratchAllocator& scratch);
  const float* vector(const model::VectorRef& ref) const {
    return ref.present() ? context_.vectors[ref.index] : nullptr;
  }

  int64_t wait_ns() const;  // for the disk, so far
  base::Status embed(std::span<const Row> rows);
  base::Status attention(std::span<const Row> rows, size_t layer);
  base::Status project_qkv(size_t rows, size_t layer);
  base::Status project_latent(size_t rows, size_t layer);
  void position_heads(std::span<const Row> rows, size_t layer);
  base::Status attention_output(size_t rows, size_t layer);
  /// Where the gates and ups of an FFN or an expert come from, and for which rows of which input.
  struct GateUp {
    const model::MatrixRef* gate = nullptr;
    const model::MatrixRef* up = nullptr;
    const model::BundleRef* bundle = nullptr;  // takes their place
    uint32_t set = 0;                          // of the bundle stream
    uint32_t expert = 0;
    const ActivationRows* x = nullptr;
    size_t at = 0;
    size_t count = 0;
  };
  std::optional<float> closed_gate() const;
  void add_gate_up(const GateUp& from);
  base::Status route(size_t rows, size_t layer);
  void read_routed(size_t rows, size_t layer);
  void begin_experts(size_t rows, size_t layer);
  base::Status dense_ffn(size_t rows, size_t layer, size_t width, bool accumulate);
  base::Status expert_ffn(size_t rows, size_t layer);
  void report_routing(size_t rows, size_t layer);
  base::Status look_ahead(size_t layer);
  void guess_input(size_t layer, FormSet forms);
  base::Status guess_experts(size_t layer);
  void read_next_experts(size_t layer);
  void leave_experts(size_t layer, size_t begin, size_t end);
  void skip_expert(const model::LayerWeights& weights, uint32_t expert);
  void request_wave(const model::LayerWeights& weights, size_t begin, size_t end);
  base::Status expert_wave(size_t layer, size_t begin, size_t end, bool read_next);
  base::Status output(std::span<const Row> rows, PassSink* sink);

  // The FFN of packed layers (forward_sparse.cc).
  base::Status sparse_ffn(size_t rows, size_t layer);
  void choose_units(size_t rows, size_t layer);
  template <typename Body>
  void submit_beside(size_t tasks, size_t at_once, Body&& body);
  /// An expert (the only one of a dense FFN) that rows are routed to.
  struct Unit {
    uint32_t expert = 0;
    uint32_t set = 0;       // of the bundle stream
    uint32_t rows = 0;      // mask of the rows routed to it
    uint32_t hot = 0;       // neurons [0, hot) are dense...
    bool hot_here = false;  // ...and computed here, not by the device;
    bool cold_here = true;  // so are the others.
  };
  struct Prediction {
    Unit* units = nullptr;  // [U]
    size_t unit_count = 0;
    float* low = nullptr;     // [U][S][rank]
    float* scores = nullptr;  // [U][S][F]: of a predictor, or the gates themselves
    size_t rows = 0;          // S
  };
  base::Status predict(const Prediction& p, const ActivationRows& x, size_t rows, size_t layer, size_t first);
  void count_found(size_t layer, std::span<const uint32_t> entries);
  base::Status score(const Prediction& p, size_t rows, size_t layer, size_t first);
  base::Status compute_active(size_t rows, size_t layer);
  void list_active(size_t rows, size_t layer);
  base::Status request_missing();
  bool can_look_ahead(size_t layer) const;
  base::Status predict_ahead(size_t layer);
  base::Status guess_units(size_t layer, Prediction* p);
  void list_hot_groups();
  void compute_ready(size_t rows, size_t layer);
  void list_tasks(size_t end);
  void compute_groups(size_t rows, size_t layer, size_t window, size_t first, size_t last);
  void add_down_rows(size_t rows, size_t layer, size_t window, size_t index);
  void add_sums(size_t rows, size_t window);
  // With a device.
  size_t begin_hot(size_t rows);
  base::Status finish_hot(size_t rows, size_t layer);
  void add_hot(size_t rows);
  const uint8_t* find(uint32_t set, uint32_t neuron) const {
    const uint8_t* lent = context_.hot == nullptr ? nullptr : context_.hot->find(set, neuron);
    return lent != nullptr ? lent : context_.bundles->find(set, neuron);
  }
  bool stays_in_memory(uint32_t set, uint32_t neuron) const {
    return context_.bundles->in_prefix(set, neuron) ||
           (context_.hot != nullptr && context_.hot->find(set, neuron) != nullptr);
  }
  void compute_cluster(size_t rows, size_t layer, std::span<const uint32_t> entries);
  /// A neuron whose gate is open for some rows (a mask); its gate of row t is gate[t * kClusterNeurons].
  struct OpenGate {
    uint32_t entry;
    uint32_t rows;
    const float* gate;
  };
  size_t compute_gates(size_t rows, size_t layer, std::span<const uint32_t> entries, float* gates,
                       OpenGate* open);
  size_t take_gates(size_t rows, size_t layer, std::span<const uint32_t> entries, float* gates,
                    OpenGate* open);
  void multiply_rows(size_t rows, base::TensorType type, const model::BundleRef& bundle,
                     std::span<const uint8_t* const> weights, float* out) const;
  void compute_ups(size_t rows, size_t layer, std::span<const OpenGate> open);

  void normalise(const model::VectorRef& weight, const model::VectorRef& bias, size_t rows,
                 const FormSet& forms);
  void normalise_row(const float* x, const float* weight, const float* bias, float* out) const;
  void add_residual(const float* bias, const float* norm, size_t rows);
  void activate(size_t rows, size_t width, size_t row_begin, const FormSet& forms, const float* gate_bias,
                const float* up_bias, const uint16_t* order);
  template <typename Body>
  void for_rows(size_t rows, Body&& body) {
    context_.threads->parallel_for(rows, 1, [&](size_t begin, size_t end, int) {
      for (size_t i = begin; i < end; ++i) body(i);
    });
  }

  ForwardContext context_;
  std::unique_ptr<Buffers> buffers_;
  std::vector<model::KvLayout> layouts_;
  std::unique_ptr<model::Rope> rope_;
  std::unique_ptr<model::Rope> rope_local_;
  Trial look_ahead_;
  bool single_row_ = false;   // this pass decodes one token
  bool exact_ = true;         // this pass takes all neurons, by their matrices
  bool all_neurons_ = false;  // ...by their bundles, of a slim pack
  std::vector<NeuronRecall>* recall_ = nullptr;
  std::mutex recall_mutex_;
  RoutingSink* routing_sink_ = nullptr;
  std::vector<uint32_t> reported_;  // [used]: experts of one row, for routing_sink_
  std::vector<Product> products_;
  std::vector<neuron_store::BlockId> next_blocks_;  // of read_next_experts()
  std::vector<async_io::ReadOp> row_reads_;
};

}  // namespace ganglion::engine

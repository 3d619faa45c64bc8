// The most frequent neurons of a pack on an accelerator: their blocks and graphs, one call per set (a layer's
// FFN, or an expert's) and pass, and what is done where the device fails. Knows no model.
//
//   Load:    create -> take, take_gate (all neurons of all sets) -> start
//   A layer: begin -> (the processor computes what is not hot; pump) -> finish -> map_results, result,
//            unmap_results
//
// Shares differ by the number of rows in a pass (buckets). What a smaller share leaves out lies in buffers of
// its own, which the processor reads meanwhile: find().
//
// A unit whose call failed, or was not made, is the caller's to compute. Once the device is lost, all are.
// Owned by the engine's thread. No allocation after start().
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "accelerator/backend.h"
#include "base/status.h"
#include "neuron_stream/bundle_stream.h"

namespace ganglion::engine {

/// The FFN of a set, as the device is told of it. Offsets in a bundle as packs have them.
struct HotSet {
  uint32_t neurons = 0;  ///< That may be hot, in whole blocks; 0: the device cannot compute this set.
  accelerator::FfnFormat format{};
  accelerator::Activation activation{};
  float threshold = 0;
  bool gates_apart = false;  ///< Bundles begin with the up row.
  uint32_t up_offset = 0;
  uint32_t down_offset = 0;
};

struct HotLayout {
  uint32_t dim = 0;
  uint32_t block_neurons = 0;
  std::vector<uint32_t> buckets;  ///< Rows of a call, ascending: of those graphs are prepared.
  std::vector<uint32_t> neurons;  ///< By bucket: the hot ones, in whole blocks, ascending.
  std::vector<HotSet> sets;
  size_t most_units = 0;  ///< Sets of a pass,
  size_t most_rows = 0;   ///< and rows.
};

struct HotStats {
  uint64_t calls = 0;
  uint64_t ahead = 0;       ///< Of those, made before the processor began the layer's other neurons.
  uint64_t recomputed = 0;  ///< Calls that failed, the processor having computed them instead.
  int64_t wait_ns = 0;      ///< Time in which the processor had nothing else to do.
  std::string lost;         ///< Why the device was given up; empty: it was not.
};

class HotClusters final : public neuron_stream::HotSink {
 public:
  /// Bytes of all buffers. Errors: kResources where the windows do not hold them.
  static base::Result<uint64_t> device_bytes(const HotLayout& layout,
                                             const accelerator::Capabilities& device);
  /// Whether rows lie on the device as in packs: only then find() can give bundles to the processor, and
  /// shares may differ.
  static bool as_in_packs(const HotLayout& layout, const accelerator::Capabilities& device);
  /// Of `buckets`, those for whose graphs of `sets` sets the device has room: the largest, then from the
  /// smallest on. Empty: not even one.
  static std::vector<uint32_t> kept_buckets(std::span<const uint32_t> buckets, size_t sets,
                                            uint32_t graph_limit);

  /// Makes buffers and opens them for take(). `backend` must outlive it. Errors: those of the backend.
  static base::Result<std::unique_ptr<HotClusters>> create(accelerator::Backend& backend, HotLayout layout);
  ~HotClusters() override;
  HotClusters(const HotClusters&) = delete;
  HotClusters& operator=(const HotClusters&) = delete;

  void take(uint32_t set, uint32_t neuron, const uint8_t* bundle) override;
  void take_gate(uint32_t set, uint32_t neuron, const uint8_t* row);
  /// Hands all blocks over and prepares all graphs. Errors: those of the backend.
  base::Status start();

  /// Neurons [0, hot) of the set are dense in passes of so many rows.
  uint32_t hot(uint32_t set, size_t rows) const;
  /// The bundle of a neuron that is on the device but not hot now, for the processor; else null.
  const uint8_t* find(uint32_t set, uint32_t neuron) const;

  /// Hands x [rows][D] (rows `stride` floats apart) to the device and makes a call for each of `sets`, as far
  /// as the queue has room.
  void begin(std::span<const uint32_t> sets, const float* x, size_t stride, size_t rows);
  /// Whether the device computes unit `unit` of the last begin(), or has.
  bool on_device(size_t unit) const { return unit < unit_ok_.size() && unit_ok_[unit] != 0; }
  /// Makes calls for which there was no room before.
  void pump();
  /// The processor begins the layer's other neurons.
  void count_ahead();
  /// Waits for all calls. on_device() tells then which units are done.
  void finish();
  /// Results until unmap_results(). False: the device is lost.
  bool map_results();
  /// Of a unit that is on_device(): [D].
  const float* result(size_t unit, size_t row) const;
  void unmap_results();

  /// Gives back all that the device holds. Requires: lost(), or no begin() any more.
  void release();

  bool lost() const { return !stats_.lost.empty(); }
  const HotStats& stats() const { return stats_; }
  const HotLayout& layout() const { return layout_; }

 private:
  using BufferId = accelerator::BufferId;
  // A window with its queue, and the activations there.
  struct Lane {
    uint32_t queue = 0;
    bool used = false;  // by the present pass
    BufferId x{};
    BufferId out{};
    std::span<uint8_t> view;  // of out, while it is mapped
    uint32_t pending = 0;
    bool made = false;
  };
  // Neurons [begin, end) of a set: what one share has more than the next smaller one.
  struct Part {
    uint32_t begin = 0;
    uint32_t end = 0;
    BufferId buffer{};
    std::span<uint8_t> view = {};  // while the processor may read it
    bool made = false;
  };
  // Bytes of rows, and where they lie in a bundle on the device (gates may lie behind all bundles).
  struct RowPlaces {
    uint32_t gate_bytes = 0, up_bytes = 0, down_bytes = 0;
    uint32_t up = 0, down = 0, stride = 0, gate_stride = 0;
  };
  struct Set {
    uint32_t lane = 0;
    RowPlaces at;
    bool defined = false;
    std::vector<Part> parts;
    std::vector<std::optional<accelerator::GraphId>> graphs;  // by bucket; of shares above 0
  };
  struct Call {
    uint32_t unit = 0;
    uint32_t set = 0;
    uint64_t x_at = 0;
    uint64_t out_at = 0;
    accelerator::Ticket ticket = 0;
    enum class State : uint8_t { kWaiting, kSubmitted, kEnded } state = State::kWaiting;
  };
  struct Placing;

  HotClusters(accelerator::Backend& backend, HotLayout layout);
  static RowPlaces place_rows(const HotSet& set, uint32_t dim, uint32_t alignment);
  static base::Result<Placing> place(const HotLayout& layout, const accelerator::Capabilities& device);
  base::Status make_buffers(const Placing& placing);
  /// Null: the neuron is not on the device.
  static const Part* part_of(const Set& set, uint32_t neuron);
  base::Status add_blocks(uint32_t set);
  size_t bucket_of(size_t rows) const;
  uint64_t chunk_bytes(size_t bucket) const;
  base::Status use_share(size_t bucket);
  bool write_x(Lane& lane, const float* x, size_t stride, size_t rows);
  bool submit(Call& call);
  void settle(Call& call, bool wait);
  Call* oldest(uint32_t lane);
  void fail(Call& call);
  void give_up(std::string why);
  void drain();

  accelerator::Backend* backend_;  // null once released
  HotLayout layout_;
  std::vector<Lane> lanes_;
  std::vector<Set> sets_;
  size_t share_ = SIZE_MAX;  // bucket whose share the parts are open for
  size_t bucket_ = 0;        // of the present pass
  size_t chunks_ = 0;
  std::vector<Call> calls_;
  size_t next_ = 0;  // of calls_: to be made
  std::vector<uint8_t> unit_ok_;
  uint32_t failures_in_a_row_ = 0;
  HotStats stats_;
};

}  // namespace ganglion::engine

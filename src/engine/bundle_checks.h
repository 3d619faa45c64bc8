// The checksums of a pack's bundles, and bytes against them: for `verify`, and for runs that ask for it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "format/gguf.h"
#include "model/weight_map.h"
#include "platform/file.h"

namespace ganglion::engine {

/// Immutable; thread-safe. Memory: 16 bytes per neuron.
class BundleChecks {
 public:
  /// Reads the checksums of all packed layers. Errors: kModelFile for checksums that are missing or of
  /// another shape than the bundles; kIo.
  static base::Result<BundleChecks> open(const format::GgufModel& file, const model::WeightMap& weights);

  /// Compares what lies wholly within [offset, offset + bytes) of a shard: gate rows and rests of bundles.
  /// Errors: kModelFile, naming the first part that differs.
  base::Status check(uint32_t shard, uint64_t offset, std::span<const uint8_t> bytes) const;

  /// Reads and compares all bundles, telling `progress` (or null) the bytes. Errors: kModelFile, naming the
  /// first run of neighbouring bundles that are bad and how many there are; kIo.
  base::Status check_all(void (*progress)(void* context, uint64_t done, uint64_t total), void* context) const;

  uint64_t bundle_bytes() const;  ///< Of all bundles, as they lie on storage.

 private:
  struct Layer {
    size_t number = 0;
    uint32_t shard = 0;
    uint64_t offset = 0;
    uint32_t stride = 0;
    uint32_t gate_bytes = 0;
    uint32_t bytes = 0;
    bool down_alone = false;  // the rest has no up row
    uint32_t neurons = 0;
    uint32_t experts = 0;
    std::vector<uint64_t> sums;  ///< [E][F][2]: of the gate row, of the rest
    uint64_t end() const { return offset + uint64_t{stride} * neurons * experts; }
  };
  BundleChecks() = default;
  base::Status wrong(const Layer& layer, uint64_t first, uint64_t last, const std::string& what) const;

  std::vector<Layer> layers_;
  std::vector<platform::File> files_;  // by shard
};

}  // namespace ganglion::engine

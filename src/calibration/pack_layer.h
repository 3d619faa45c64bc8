// Packs the FFN of one layer: order by frequency, predictors, bundles. Called by pack_model layer by layer.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "calibration/predictor_fit.h"
#include "format/gguf.h"
#include "format/gguf_writer.h"
#include "kernels/kernel_table.h"
#include "platform/file.h"

namespace ganglion::calibration {

/// One layer's matrices in the source, and how its bundles are laid out.
struct PackedLayer {
  const format::TensorInfo* gate = nullptr;  ///< [E][F] rows of D
  const format::TensorInfo* up = nullptr;    ///< [E][F] rows of D
  const format::TensorInfo* down = nullptr;  ///< [E][D] rows of F
  uint32_t neurons = 0;
  uint32_t experts = 1;
  uint32_t dim = 0;
  uint32_t rank = 0;
  uint32_t gate_bytes = 0;
  uint32_t up_bytes = 0;
  uint32_t down_bytes = 0;
  uint32_t stride = 0;

  uint32_t bundle_bytes() const { return gate_bytes + up_bytes + down_bytes; }
};

/// Offsets as docs/pack_format.md has them; a stride of whole pages where that wastes at most a fifth: a read
/// that crosses fewer pages is worth more than the disk's space, and memory holds no padding.
PackedLayer lay_out_bundles(const format::TensorInfo& gate, const format::TensorInfo& up,
                            const format::TensorInfo& down, kernels::DownType down_type, uint32_t rank);

/// Declares the layer's tensors in the order in which write_layer() fills them.
void declare_layer(const PackedLayer& layer, const std::string& prefix, format::GgufWriter* writer);

struct LayerSource {
  std::span<const platform::File> files;  ///< By shard.
  const kernels::KernelTable* kernels = nullptr;
  platform::ThreadPool* threads = nullptr;
  kernels::DownType down_type = kernels::DownType::kQ6;
  bool rectified_up = false;
  double recall = 0.99;
};

/// Fits and writes everything that declare_layer() declared. `inputs` [tokens][D]; `experts` [tokens][used]
/// or empty. Errors: kIo, kModelFile.
base::Result<PackLayerReport> write_layer(const PackedLayer& layer, const LayerSource& source,
                                          std::span<const float> inputs, std::span<const uint32_t> experts,
                                          format::GgufWriter* writer);

/// The 64-bit checksum of bundle parts, see docs/pack_format.md.
uint64_t bundle_checksum(std::span<const uint8_t> bytes);

}  // namespace ganglion::calibration

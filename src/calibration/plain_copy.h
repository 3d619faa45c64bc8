// A PowerInfer model (format/powerinfer.h) as a plain GGUF file, which the exact model can be run from while
// it is calibrated and packed: everything is copied but the down matrices, which are transposed. Called by
// pack_model, which removes the file again.
#pragma once

#include <string>

#include "base/status.h"
#include "ganglion/pack.h"

namespace ganglion::calibration {

/// Owns the file, which is removed with it.
class PlainCopy {
 public:
  PlainCopy() = default;
  PlainCopy(PlainCopy&& other) noexcept { *this = std::move(other); }
  PlainCopy& operator=(PlainCopy&& other) noexcept;
  ~PlainCopy();

  using Progress = bool (*)(void* context, const char* stage, uint64_t done, uint64_t total);

  /// Nothing for any other model than a PowerInfer one. Memory: the largest down matrix as it is, and 256 of
  /// its columns as floats. Errors: those of opening; kUnsupported (architectures other than llama, bamboo
  /// and opt, values that F16 cannot hold), kResources (memory, disk), kCancelled, kIo.
  static base::Result<PlainCopy> make(const PackOptions& options, Progress progress, void* context);

  bool made() const { return !path_.empty(); }
  const std::string& path() const { return path_; }
  /// The type of down rows that loses nothing, or hardly, of the source's; empty: as for other models.
  const std::string& down() const { return down_; }
  /// What became of the down matrices, for reports.
  const std::string& note() const { return note_; }

 private:
  std::string path_, down_, note_;
};

}  // namespace ganglion::calibration

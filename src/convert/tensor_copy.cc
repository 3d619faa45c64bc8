#include "convert/tensor_copy.h"

#include <fcntl.h>

#include <algorithm>
#include <cstring>

#include "base/units.h"
#include "convert/quantise.h"

namespace ganglion::convert {

using base::Code;
using base::Status;
using base::TensorType;

namespace {

constexpr uint64_t kSliceBytes = 4 * base::kMiB;

// Rows i and i + rows/2 become rows 2i and 2i + 1.
void interleave(const std::vector<uint8_t>& in, uint64_t rows, size_t row_bytes, std::vector<uint8_t>* out) {
  out->resize(in.size());
  for (uint64_t i = 0; i < rows; ++i) {
    const uint64_t to = i < rows / 2 ? 2 * i : 2 * (i - rows / 2) + 1;
    std::memcpy(out->data() + to * row_bytes, in.data() + i * row_bytes, row_bytes);
  }
}

class Copier {
 public:
  Copier(const platform::File& file, const format::SafeTensor& source, const ResolvedTensor& tensor,
         format::GgufWriter* writer)
      : file_(file), source_(source), tensor_(tensor), writer_(writer) {}

  Status run() {
    const PlannedTensor& plan = *tensor_.plan;
    const size_t element = base::tensor_type_info(*source_.type).block_bytes;
    // A vector with heads is a column of rows.
    const bool column = plan.interleaved_heads > 0 && source_.shape.size() == 1;
    const uint64_t rows = column ? tensor_.cols : tensor_.rows;
    const uint64_t row_bytes = (column ? 1 : tensor_.cols) * element;
    const uint64_t step = plan.interleaved_heads > 0
                              ? rows / plan.interleaved_heads
                              : std::max<uint64_t>(1, kSliceBytes / std::max<uint64_t>(row_bytes, 1));
    const uint64_t start = source_.offset + plan.skip_rows * row_bytes;
    for (uint64_t row = 0; row < rows; row += step) {
      const uint64_t count = std::min(step, rows - row);
      raw_.resize(count * row_bytes);
      const uint64_t at = start + row * row_bytes;
      GANGLION_RETURN_IF_ERROR(file_.read_exact(at, raw_).with_context("tensor '" + source_.name + "'"));
      // Read once: it need not stay in the page cache.
      ::posix_fadvise(file_.fd(), static_cast<off_t>(at), static_cast<off_t>(raw_.size()),
                      POSIX_FADV_DONTNEED);
      if (plan.interleaved_heads > 0) {
        interleave(raw_, count, row_bytes, &ordered_);
        raw_.swap(ordered_);
      }
      GANGLION_RETURN_IF_ERROR(write_slice());
    }
    return base::ok_status();
  }

 private:
  Status write_slice() {
    if (*source_.type == tensor_.type) return writer_->write(raw_);
    floats_.resize(raw_.size() / base::tensor_type_info(*source_.type).block_bytes);
    to_floats(*source_.type, raw_.data(), floats_);
    converted_.resize(base::row_bytes(tensor_.type, floats_.size()));
    if (try_from_floats(tensor_.type, floats_, converted_.data())) return writer_->write(converted_);
    const bool finite = std::all_of(floats_.begin(), floats_.end(), [](float x) { return x - x == 0; });
    if (!finite) {
      return Status(Code::kModelFile,
                    "'" + file_.path() + "': tensor '" + source_.name + "' holds values that are not finite");
    }
    return Status(Code::kUnsupported, "'" + file_.path() + "': tensor '" + source_.name +
                                          "' holds values above what " +
                                          std::string(base::tensor_type_info(tensor_.type).name) +
                                          " can - convert to bf16 or f32");
  }

  const platform::File& file_;
  const format::SafeTensor& source_;
  const ResolvedTensor& tensor_;
  format::GgufWriter* writer_;
  std::vector<uint8_t> raw_, ordered_, converted_;
  std::vector<float> floats_;
};

}  // namespace

std::vector<uint64_t> ResolvedTensor::gguf_dims() const {
  std::vector<uint64_t> dims = {cols};
  if (plan->shape.size() > 1) dims.push_back(rows);
  if (sources.size() > 1) dims.push_back(sources.size());
  return dims;
}

uint64_t ResolvedTensor::bytes() const {
  return base::row_bytes(type, cols) * rows * std::max<size_t>(sources.size(), 1);
}

Status copy_tensor(const Checkpoint& checkpoint, const ResolvedTensor& tensor, format::GgufWriter* writer) {
  if (tensor.sources.empty()) {
    const std::vector<float>& values = tensor.plan->values;
    return writer->write({reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(float)});
  }
  for (const CheckpointTensor* source : tensor.sources) {
    GANGLION_RETURN_IF_ERROR(Copier(checkpoint.files[source->file], source->info, tensor, writer).run());
  }
  return base::ok_status();
}

}  // namespace ganglion::convert

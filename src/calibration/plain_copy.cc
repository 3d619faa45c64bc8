#include "calibration/plain_copy.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "base/units.h"
#include "calibration/model_source.h"
#include "engine/runtime.h"
#include "format/gguf_writer.h"
#include "format/powerinfer.h"
#include "kernels/kernel_table.h"
#include "model/weight_map.h"
#include "model_config/model_config.h"
#include "platform/cpu.h"
#include "platform/threads.h"

namespace ganglion::calibration {

using base::Code;
using base::Result;
using base::Status;
using base::TensorType;
using format::GgufModel;
using format::TensorInfo;
using kernels::DownType;

namespace {

constexpr size_t kColumns = 256;  // At once; whole blocks of any type.
constexpr size_t kRowsAtOnce = 64;
constexpr float kLargestHalf = 65504;

class Copier {
 public:
  Copier(const PackOptions& options, const GgufModel& source, const GgufModel& plain,
         PlainCopy::Progress progress, void* context)
      : options_(options), source_(source), plain_(plain), progress_(progress), context_(context) {}

  Status run(const std::string& path) {
    GANGLION_RETURN_IF_ERROR(open());
    format::GgufWriter writer(path);
    for (const auto& [key, value] : plain_.metadata().values()) {
      if (key != "general.alignment" && key.rfind("split.", 0) != 0) writer.add_value(key, value);
    }
    for (const TensorInfo& tensor : plain_.tensors())
      writer.add_tensor(tensor.name, tensor.type, {tensor.dims, tensor.dims + tensor.dim_count});
    GANGLION_RETURN_IF_ERROR(check_memory());
    GANGLION_RETURN_IF_ERROR(
        check_free_space(path, writer.data_bytes(), "the model with its down matrices transposed"));
    GANGLION_RETURN_IF_ERROR(writer.begin_data());
    const size_t count = plain_.tensors().size();
    for (size_t i = 0; i < count; ++i) {
      if (progress_ != nullptr && !progress_(context_, "transposing down matrices", i, count))
        return Status(Code::kCancelled, "interrupted");
      const TensorInfo& to = plain_.tensors()[i];
      const TensorInfo* down = format::transposed_source(source_, to);
      GANGLION_RETURN_IF_ERROR(down != nullptr ? transpose(*down, to, &writer)
                                               : copy_tensor(files_[to.shard], to, &writer));
    }
    return writer.finish();
  }

 private:
  Status open() {
    for (const format::ShardInfo& shard : source_.shards()) {
      GANGLION_ASSIGN_OR_RETURN(platform::File opened, platform::File::open(shard.path));
      files_.push_back(std::move(opened));
    }
    kernels_ = kernels::select_table(options_.isa);
    if (kernels_ == nullptr)
      return Status(Code::kInvalidArgument, "no kernels '" + options_.isa + "' on this machine");
    threads_ = std::make_unique<platform::ThreadPool>(
        options_.threads > 0 ? options_.threads : platform::default_thread_count());
    for (const TensorInfo& to : plain_.tensors()) {
      const TensorInfo* down = format::transposed_source(source_, to);
      if (down == nullptr) continue;
      downs_.push_back(down);
      if (kernels_->dequantize[static_cast<size_t>(down->type)] == nullptr)
        return Status(Code::kUnsupported, "tensor '" + down->name + "' has a type that is not computable");
    }
    return base::ok_status();
  }

  Status check_memory() const {
    uint64_t need = 0;
    for (const TensorInfo* down : downs_)
      need = std::max(need, down->bytes + kColumns * down->dims[1] * sizeof(float));
    return calibration::check_memory(options_.memory, need, "transposing a down matrix", "raise it");
  }

  // `from` [F] rows of D, `to` [D] rows of F.
  Status transpose(const TensorInfo& from, const TensorInfo& to, format::GgufWriter* writer) {
    const size_t dim = from.dims[0];
    const size_t neurons = from.dims[1];
    GANGLION_RETURN_IF_ERROR(read(from));
    floats_.resize(std::min(kColumns, dim) * neurons);
    for (size_t first = 0; first < dim; first += kColumns) {
      const size_t count = std::min(kColumns, dim - first);
      columns(from, first, count);
      for (size_t row = 0; row < count; row += kRowsAtOnce) {
        const size_t rows = std::min(kRowsAtOnce, count - row);
        GANGLION_RETURN_IF_ERROR(write_rows(from, to.type, row, rows, writer));
      }
    }
    return base::ok_status();
  }

  Status read(const TensorInfo& from) {
    raw_.resize(from.bytes);
    const platform::File& file = files_[from.shard];
    GANGLION_RETURN_IF_ERROR(file.read_exact(from.offset, raw_).with_context("tensor '" + from.name + "'"));
    ::posix_fadvise(file.fd(), static_cast<off_t>(from.offset), static_cast<off_t>(from.bytes),
                    POSIX_FADV_DONTNEED);
    return base::ok_status();
  }

  // floats_ [count][F]: elements [first, first + count) of all rows.
  void columns(const TensorInfo& from, size_t first, size_t count) {
    const size_t neurons = from.dims[1];
    const size_t row_bytes = base::row_bytes(from.type, from.dims[0]);
    const size_t at = base::row_bytes(from.type, first);
    const auto dequantize = kernels_->dequantize[static_cast<size_t>(from.type)];
    threads_->parallel_for(neurons, kRowsAtOnce, [&](size_t begin, size_t end, int) {
      float part[kColumns];
      for (size_t f = begin; f < end; ++f) {
        dequantize(raw_.data() + f * row_bytes + at, count, part);
        for (size_t i = 0; i < count; ++i) floats_[i * neurons + f] = part[i];
      }
    });
  }

  // Floats back into the type that they came from, or into halves.
  Status write_rows(const TensorInfo& from, TensorType type, size_t first, size_t count,
                    format::GgufWriter* writer) {
    const size_t neurons = from.dims[1];
    const float* values = floats_.data() + first * neurons;
    const size_t bytes = base::row_bytes(type, neurons);
    out_.resize(count * bytes);
    if (type == TensorType::kF32) {
      std::memcpy(out_.data(), values, out_.size());
      return writer->write(out_);
    }
    if (type == TensorType::kBF16) {  // Their upper halves, exactly.
      for (size_t i = 0; i < count * neurons; ++i)
        std::memcpy(out_.data() + 2 * i, reinterpret_cast<const uint8_t*>(values + i) + 2, 2);
      return writer->write(out_);
    }
    if (type != TensorType::kF16)
      return Status(Code::kUnsupported, "tensor '" + from.name + "' has a type that cannot be transposed");
    std::vector<float> row(base::round_up(neurons, 32));
    std::vector<uint8_t> halves(kernels::down_row_bytes(DownType::kF16, row.size()));
    for (size_t r = 0; r < count; ++r) {
      std::copy_n(values + r * neurons, neurons, row.begin());
      if (!std::all_of(row.begin(), row.end(), [](float x) { return std::fabs(x) <= kLargestHalf; }))
        return Status(Code::kUnsupported, "tensor '" + from.name + "' holds values that F16 cannot hold");
      kernels::quantize_down_row(DownType::kF16, row.data(), row.size(), halves.data());
      std::memcpy(out_.data() + r * bytes, halves.data(), bytes);
    }
    return writer->write(out_);
  }

  const PackOptions& options_;
  const GgufModel& source_;
  const GgufModel& plain_;
  PlainCopy::Progress progress_;
  void* context_;
  std::vector<platform::File> files_;
  std::vector<const TensorInfo*> downs_;  // transposed ones
  const kernels::KernelTable* kernels_ = nullptr;
  std::unique_ptr<platform::ThreadPool> threads_;
  std::vector<uint8_t> raw_, out_;
  std::vector<float> floats_;
};

}  // namespace

PlainCopy& PlainCopy::operator=(PlainCopy&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(down_, other.down_);
  std::swap(note_, other.note_);
  return *this;
}

PlainCopy::~PlainCopy() {
  if (made()) ::unlink(path_.c_str());
}

Result<PlainCopy> PlainCopy::make(const PackOptions& options, Progress progress, void* context) {
  GANGLION_ASSIGN_OR_RETURN(const GgufModel source, GgufModel::open(options.model_path));
  PlainCopy copy;
  if (!source.powerinfer()) return copy;
  GANGLION_ASSIGN_OR_RETURN(GgufModel plain, format::plain_header(source));
  GANGLION_RETURN_IF_ERROR(engine::apply_overrides(options.overrides, &plain.metadata()));
  GANGLION_ASSIGN_OR_RETURN(model_config::ModelConfig config,
                            model_config::read_model_config(plain.metadata()));
  GANGLION_RETURN_IF_ERROR(model::map_weights(plain, &config).status());  // Before much is copied.
  const std::string path = options.output_path + ".plain";
  GANGLION_RETURN_IF_ERROR(Copier(options, source, plain, progress, context).run(path));
  copy.path_ = path;
  for (const TensorInfo& to : plain.tensors()) {
    const TensorInfo* from = format::transposed_source(source, to);
    if (from == nullptr) continue;
    copy.note_ = "down matrices transposed to " + std::string(base::tensor_type_info(to.type).name);
    if (from->type == to.type) break;
    copy.note_ += ", rounded from " + std::string(base::tensor_type_info(from->type).name);
    // Rows of Q4_0 and q4 have the same blocks, and the same rule for their scales.
    if (from->type == TensorType::kQ4_0) copy.down_ = "q4";
    break;
  }
  return copy;
}

}  // namespace ganglion::calibration

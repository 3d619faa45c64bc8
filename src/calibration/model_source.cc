#include "calibration/model_source.h"

#include <fcntl.h>
#include <sys/statvfs.h>

#include <algorithm>

#include "base/units.h"
#include "engine/runtime.h"
#include "format/powerinfer.h"
#include "model/weight_map.h"
#include "platform/cpu.h"
#include "platform/memory.h"

namespace ganglion::calibration {

using base::Code;
using base::Result;
using base::Status;
using format::TensorInfo;
using model_config::FfnActivation;

Result<std::unique_ptr<ModelSource>> ModelSource::open(const SourceOptions& options) {
  std::unique_ptr<ModelSource> source(new ModelSource());
  GANGLION_RETURN_IF_ERROR(source->read_header(options));
  GANGLION_RETURN_IF_ERROR(source->choose_layers(options));
  return source;
}

Status ModelSource::read_header(const SourceOptions& options) {
  GANGLION_ASSIGN_OR_RETURN(format::GgufModel file, format::GgufModel::open(options.model_path));
  GANGLION_RETURN_IF_ERROR(format::refuse_powerinfer(file, options.model_path));
  file_ = std::make_unique<format::GgufModel>(std::move(file));
  GANGLION_RETURN_IF_ERROR(engine::apply_overrides(options.overrides, &file_->metadata()));
  GANGLION_ASSIGN_OR_RETURN(config_, model_config::read_model_config(file_->metadata()));
  for (const format::ShardInfo& shard : file_->shards()) {
    GANGLION_ASSIGN_OR_RETURN(platform::File opened, platform::File::open(shard.path));
    files_.push_back(std::move(opened));
  }
  kernels_ = kernels::select_table(options.isa);
  if (kernels_ == nullptr)
    return Status(Code::kInvalidArgument, "no kernels '" + options.isa + "' on this machine");
  threads_ = std::make_unique<platform::ThreadPool>(options.threads > 0 ? options.threads
                                                                        : platform::default_thread_count());
  return base::ok_status();
}

Status ModelSource::choose_layers(const SourceOptions& options) {
  if (config_.pack.present)
    return Status(Code::kInvalidArgument, "'" + options.model_path + "' is a pack already");
  const bool rectified =
      config_.activation == FfnActivation::kRelu || config_.activation == FfnActivation::kDRelu;
  const bool silu = config_.activation == FfnActivation::kSilu && !config_.ungated;
  if (!rectified && !(silu && options.allow_silu)) {
    return Status(
        Code::kUnsupported,
        std::string("this model's FFN activations are not sparse (no ReLU): run it as it is - it is "
                    "streamed losslessly") +
            (silu ? "; --sparsify cats packs it at a loss" : ""));
  }
  GANGLION_ASSIGN_OR_RETURN(const model::WeightMap weights, model::map_weights(*file_, &config_));
  const auto tensor = [&](const model::MatrixRef& matrix) {
    return matrix.present() ? &file_->tensors()[weights.matrices[matrix.index]] : nullptr;
  };
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    const model::LayerWeights& w = weights.layers[i];
    const bool moe = config_.layers[i].moe;
    const model::MatrixRef& gate = moe ? w.expert_gate : w.gate;
    const model::MatrixRef& up = moe ? w.expert_up : w.up;
    // Without a gate, biases have their places: in the thresholds, and in what comes behind the FFN.
    const bool biased = (!config_.ungated && (w.gate_bias.present() || w.down_bias.present())) ||
                        w.up_bias.present() || w.expert_gate_bias.present() || w.expert_up_bias.present() ||
                        w.expert_down_bias.present();
    if (!gate.present() || up.present() == config_.ungated || biased || config_.dim % 32 != 0 ||
        gate.rows > 65536) {
      return Status(Code::kUnsupported,
                    base::format("layer %zu cannot be packed: its FFN has %s", i,
                                 biased ? "a gate and biases" : "a shape that bundles do not hold"));
    }
    layers_.push_back({.gate = tensor(gate),
                       .up = tensor(up),
                       .down = tensor(moe ? w.expert_down : w.down),
                       .bias = !moe && w.gate_bias.present()
                                   ? &file_->tensors()[weights.vectors[w.gate_bias.index]]
                                   : nullptr,
                       .neurons = gate.rows,
                       .experts = gate.slices,
                       .used = moe ? config_.moe.used_count : 1,
                       .dim = gate.cols});
  }
  return find_carried_predictors();
}

// ffn_predictor_fc1 and fc2 as our converter names them, fc1 and fc2 as PowerInfer's does. They read the
// input before an RMS norm.
Status ModelSource::find_carried_predictors() {
  if (config_.layer_norm) return base::ok_status();
  for (size_t i = 0; i < layers_.size(); ++i) {
    FfnMatrices& ffn = layers_[i];
    const std::string prefix = "blk." + std::to_string(i) + ".";
    for (const char* name : {"ffn_predictor_fc", "fc"}) {
      const TensorInfo* low = file_->find_tensor(prefix + name + "1.weight");
      const TensorInfo* out = file_->find_tensor(prefix + name + "2.weight");
      const TensorInfo* norm = file_->find_tensor(prefix + "ffn_norm.weight");
      if (low == nullptr || out == nullptr || norm == nullptr || ffn.experts > 1) continue;
      if (low->dims[0] != ffn.dim || low->elements() != ffn.dim * low->dims[1] ||
          out->dims[0] != low->dims[1] || out->dims[1] != ffn.neurons ||
          out->elements() != out->dims[0] * out->dims[1] || norm->elements() != ffn.dim) {
        return Status(
            Code::kModelFile,
            base::format("the predictor '%s' %s, '%s' %s does not fit an FFN of %u neurons and width %u",
                         low->name.c_str(), low->shape().c_str(), out->name.c_str(), out->shape().c_str(),
                         ffn.neurons, ffn.dim));
      }
      ffn.mlp_low = low;
      ffn.mlp_out = out;
      ffn.norm = norm;
      break;
    }
  }
  return base::ok_status();
}

Result<std::vector<float>> ModelSource::read_floats(const TensorInfo& tensor) const {
  std::vector<uint8_t> bytes(tensor.bytes);
  GANGLION_RETURN_IF_ERROR(
      files_[tensor.shard].read_exact(tensor.offset, bytes).with_context("tensor '" + tensor.name + "'"));
  std::vector<float> values(tensor.elements());
  kernels_->dequantize[static_cast<size_t>(tensor.type)](bytes.data(), values.size(), values.data());
  return values;
}

Status ModelSource::read_slice(const TensorInfo& tensor, uint32_t expert, std::vector<uint8_t>* out) const {
  out->resize(base::row_bytes(tensor.type, tensor.dims[0]) * tensor.dims[1]);
  const platform::File& file = files_[tensor.shard];
  const uint64_t offset = tensor.offset + expert * out->size();
  GANGLION_RETURN_IF_ERROR(file.read_exact(offset, *out).with_context("tensor '" + tensor.name + "'"));
  ::posix_fadvise(file.fd(), static_cast<off_t>(offset), static_cast<off_t>(out->size()),
                  POSIX_FADV_DONTNEED);
  return base::ok_status();
}

Status copy_tensor(const platform::File& file, const TensorInfo& tensor, format::GgufWriter* writer) {
  constexpr uint64_t kSlice = 4 * base::kMiB;
  std::vector<uint8_t> bytes;
  for (uint64_t at = 0; at < tensor.bytes; at += bytes.size()) {
    bytes.resize(std::min<uint64_t>(kSlice, tensor.bytes - at));
    const uint64_t from = tensor.offset + at;
    GANGLION_RETURN_IF_ERROR(file.read_exact(from, bytes).with_context("tensor '" + tensor.name + "'"));
    ::posix_fadvise(file.fd(), static_cast<off_t>(from), static_cast<off_t>(bytes.size()),
                    POSIX_FADV_DONTNEED);
    GANGLION_RETURN_IF_ERROR(writer->write(bytes));
  }
  return base::ok_status();
}

Status check_memory(const std::string& memory, uint64_t need_bytes, const std::string& what,
                    const std::string& advice) {
  GANGLION_ASSIGN_OR_RETURN(const uint64_t budget, engine::parse_budget(memory));
  if (budget == 0) return base::ok_status();  // "min": as little as it takes.
  need_bytes += platform::read_process_memory().resident_bytes;
  if (need_bytes <= budget) return base::ok_status();
  return Status(Code::kResources, what + " takes " + base::format_bytes(need_bytes) + ", --mem gives " +
                                      base::format_bytes(budget) + " - " + advice);
}

Status check_free_space(const std::string& path, uint64_t need_bytes, const std::string& what) {
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  struct statvfs fs = {};
  if (::statvfs(folder.c_str(), &fs) != 0)
    return Status(Code::kIo, "there is no folder '" + folder + "' - give another place with -o");
  const uint64_t free = uint64_t{fs.f_bavail} * fs.f_frsize;
  if (free >= need_bytes) return base::ok_status();
  return Status(Code::kResources,
                base::format("'%s' has %s free, %s are needed (%s) - make room, or write elsewhere with -o",
                             folder.c_str(), base::format_bytes(free).c_str(),
                             base::format_bytes(need_bytes).c_str(), what.c_str()));
}

}  // namespace ganglion::calibration

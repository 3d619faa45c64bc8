// pack_model(): source header -> calibration tokens through the exact model -> one layer after the other
// fitted and written. Peak memory is the exact model's budget, then one layer's matrices and samples.
#include <fcntl.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <memory>

#include "base/units.h"
#include "calibration/activation_samples.h"
#include "calibration/pack_layer.h"
#include "engine/runtime.h"
#include "ganglion/pack.h"
#include "platform/cpu.h"

namespace ganglion {

using base::TensorType;
using calibration::ActivationSamples;
using calibration::LayerSource;
using calibration::PackedLayer;
using format::TensorInfo;
using kernels::DownType;
using model::LayerWeights;
using model_config::FfnActivation;

namespace {

using ProgressFn = bool (*)(void*, const char*, uint64_t, uint64_t);

class Packer {
 public:
  Packer(const PackOptions& options, ProgressFn progress, void* context)
      : options_(options), progress_(progress), context_(context) {}

  Result<PackReport> run() {
    GANGLION_RETURN_IF_ERROR(open());
    GANGLION_RETURN_IF_ERROR(choose_layers());
    GANGLION_RETURN_IF_ERROR(check_room());
    GANGLION_RETURN_IF_ERROR(sample());
    return write();
  }

 private:
  Status open() {
    GANGLION_ASSIGN_OR_RETURN(format::GgufModel file, format::GgufModel::open(options_.model_path));
    file_ = std::make_unique<format::GgufModel>(std::move(file));
    GANGLION_RETURN_IF_ERROR(engine::apply_overrides(options_.overrides, &file_->metadata()));
    GANGLION_ASSIGN_OR_RETURN(config_, model_config::read_model_config(file_->metadata()));
    GANGLION_ASSIGN_OR_RETURN(weights_, model::map_weights(*file_, &config_));
    for (const format::ShardInfo& shard : file_->shards()) {
      GANGLION_ASSIGN_OR_RETURN(platform::File opened, platform::File::open(shard.path));
      files_.push_back(std::move(opened));
    }
    kernels_ = kernels::select_table(options_.isa);
    if (kernels_ == nullptr)
      return Status(Code::kInvalidArgument, "no kernels '" + options_.isa + "' on this machine");
    threads_ = std::make_unique<platform::ThreadPool>(
        options_.threads > 0 ? options_.threads : platform::default_thread_count());
    static constexpr const char* kNames[kernels::kDownTypes] = {"q4", "q6", "q8", "f16", "f32"};
    for (size_t i = 0; i < kernels::kDownTypes; ++i) {
      if (options_.down == kNames[i]) down_type_ = static_cast<DownType>(i);
      known_down_ = known_down_ || options_.down == kNames[i];
    }
    if (!known_down_) {
      return Status(Code::kInvalidArgument,
                    "'" + options_.down + "' is no type of down rows - use q4, q6, q8, f16 or f32");
    }
    if (options_.rank % 32 != 0 || options_.rank > 4096) {
      return Status(Code::kInvalidArgument,
                    base::format("a predictor of rank %u - use a multiple of 32, or 0", options_.rank));
    }
    return ok_status();
  }

  Status choose_layers() {
    if (config_.pack.present)
      return Status(Code::kInvalidArgument, "'" + options_.model_path + "' is a pack already");
    if (config_.activation != FfnActivation::kRelu && config_.activation != FfnActivation::kDRelu) {
      return Status(Code::kUnsupported,
                    "this model's FFN activations are not sparse (no ReLU): run it as it is - it is streamed "
                    "losslessly");
    }
    for (size_t i = 0; i < weights_.layers.size(); ++i) {
      const LayerWeights& w = weights_.layers[i];
      const bool moe = config_.layers[i].moe;
      const model::MatrixRef& gate = moe ? w.expert_gate : w.gate;
      const model::MatrixRef& up = moe ? w.expert_up : w.up;
      const model::MatrixRef& down = moe ? w.expert_down : w.down;
      const bool biased = w.gate_bias.present() || w.up_bias.present() || w.down_bias.present() ||
                          w.expert_gate_bias.present() || w.expert_up_bias.present() ||
                          w.expert_down_bias.present();
      const TensorInfo* tensors[] = {tensor(gate), tensor(up), tensor(down)};
      if (!gate.present() || !up.present() || biased || config_.dim % 32 != 0 || gate.rows > 65536) {
        return Status(Code::kUnsupported,
                      base::format("layer %zu cannot be packed: its FFN has %s", i,
                                   biased ? "biases" : "a shape that bundles do not hold"));
      }
      layers_.push_back(
          calibration::lay_out_bundles(*tensors[0], *tensors[1], *tensors[2], down_type_, options_.rank));
    }
    return ok_status();
  }

  const TensorInfo* tensor(const model::MatrixRef& matrix) const {
    return matrix.present() ? &file_->tensors()[weights_.matrices[matrix.index]] : nullptr;
  }

  // Space for the output and the samples.
  Status check_room() const {
    uint64_t need = file_->file_bytes();
    for (const PackedLayer& layer : layers_) {
      need += uint64_t{layer.stride} * layer.neurons * layer.experts - layer.gate->bytes - layer.up->bytes;
      need += uint64_t{layer.rank} * (layer.dim + layer.neurons) * layer.experts * 17 / 16;
      need += options_.tokens * layer.dim * sizeof(float);
    }
    struct statvfs fs = {};
    const std::string folder = options_.output_path.find('/') == std::string::npos
                                   ? "."
                                   : options_.output_path.substr(0, options_.output_path.rfind('/') + 1);
    if (::statvfs(folder.c_str(), &fs) != 0) return Status(Code::kIo, "there is no folder '" + folder + "'");
    const uint64_t free = uint64_t{fs.f_bavail} * fs.f_frsize;
    if (free >= need) return ok_status();
    return Status(Code::kResources,
                  base::format("'%s' has %s free, %s are needed (the pack and its samples)", folder.c_str(),
                               base::format_bytes(free).c_str(), base::format_bytes(need).c_str()));
  }

  Result<std::vector<int32_t>> tokens() {
    std::vector<int32_t> tokens;
    if (options_.text_path.empty()) {
      uint64_t random = 42;
      for (size_t i = 0; i < options_.tokens; ++i) {
        random = random * 6364136223846793005U + 1442695040888963407U;
        tokens.push_back(static_cast<int32_t>((random >> 33) % config_.vocab));
      }
      return tokens;
    }
    constexpr uint64_t kMostText = 256 * base::kMiB;
    GANGLION_ASSIGN_OR_RETURN(const std::string text,
                              platform::read_text_file(options_.text_path, kMostText));
    // Opened anew: it takes the vocabulary out of the metadata that it is given.
    GANGLION_ASSIGN_OR_RETURN(const std::unique_ptr<TextModel> model,
                              TextModel::open(options_.model_path, options_.overrides));
    GANGLION_ASSIGN_OR_RETURN(tokens, model->encode(text, true, false));
    if (tokens.size() > options_.tokens) tokens.resize(options_.tokens);
    return tokens;
  }

  Status sample() {
    GANGLION_ASSIGN_OR_RETURN(const std::vector<int32_t> all, tokens());
    tokens_ = all.size();
    EngineOptions exact;
    exact.model_path = options_.model_path;
    exact.memory = options_.memory;
    exact.threads = options_.threads;
    exact.isa = options_.isa;
    exact.overrides = options_.overrides;
    GANGLION_ASSIGN_OR_RETURN(
        samples_, ActivationSamples::collect(exact, all, options_.output_path + ".samples",
                                             [&](uint64_t done, uint64_t total) {
                                               return tell("running the exact model", done, total);
                                             }));
    return ok_status();
  }

  bool tell(const char* stage, uint64_t done, uint64_t total) const {
    return progress_ == nullptr || progress_(context_, stage, done, total);
  }

  void add_metadata(format::GgufWriter* writer) const {
    for (const auto& [key, value] : file_->metadata().values()) {
      if (key == "general.alignment" || key.rfind("split.", 0) == 0) continue;
      writer->add_value(key, value);
    }
    writer->add_uint("ganglion.pack.version", 1);
    writer->add_string("ganglion.pack.down", options_.down);
    writer->add_uint("ganglion.pack.calibration_tokens", static_cast<uint32_t>(tokens_));
    writer->add_float("ganglion.pack.recall", static_cast<float>(options_.recall));
    std::vector<int32_t> gate, up, stride, rank;
    for (const PackedLayer& layer : layers_) {
      gate.push_back(static_cast<int32_t>(layer.gate->type));
      up.push_back(static_cast<int32_t>(layer.up->type));
      stride.push_back(static_cast<int32_t>(layer.stride));
      rank.push_back(static_cast<int32_t>(layer.rank));
    }
    writer->add_ints("ganglion.pack.gate_type", gate);
    writer->add_ints("ganglion.pack.up_type", up);
    writer->add_ints("ganglion.pack.stride", stride);
    writer->add_ints("ganglion.pack.rank", rank);
  }

  // Tensors that go into the pack as they are, in the order of the source.
  std::vector<const TensorInfo*> verbatim() const {
    std::vector<const TensorInfo*> kept;
    for (const TensorInfo& tensor : file_->tensors()) {
      const bool bundled = std::any_of(layers_.begin(), layers_.end(), [&](const PackedLayer& layer) {
        return layer.gate == &tensor || layer.up == &tensor;
      });
      if (!bundled) kept.push_back(&tensor);
    }
    return kept;
  }

  Status copy(const TensorInfo& tensor, format::GgufWriter* writer) const {
    std::vector<uint8_t> bytes;
    const platform::File& file = files_[tensor.shard];
    for (uint64_t at = 0; at < tensor.bytes; at += bytes.size()) {
      bytes.resize(std::min<uint64_t>(4 * base::kMiB, tensor.bytes - at));
      GANGLION_RETURN_IF_ERROR(
          file.read_exact(tensor.offset + at, bytes).with_context("tensor '" + tensor.name + "'"));
      ::posix_fadvise(file.fd(), static_cast<off_t>(tensor.offset + at), static_cast<off_t>(bytes.size()),
                      POSIX_FADV_DONTNEED);
      GANGLION_RETURN_IF_ERROR(writer->write(bytes));
    }
    return ok_status();
  }

  Result<PackReport> write() {
    format::GgufWriter writer(options_.output_path, 4096);
    add_metadata(&writer);
    const std::vector<const TensorInfo*> kept = verbatim();
    for (const TensorInfo* tensor : kept) {
      writer.add_tensor(tensor->name, tensor->type,
                        std::vector<uint64_t>(tensor->dims, tensor->dims + tensor->dim_count));
    }
    for (size_t i = 0; i < layers_.size(); ++i) calibration::declare_layer(layers_[i], prefix(i), &writer);
    GANGLION_RETURN_IF_ERROR(writer.begin_data());
    for (const TensorInfo* tensor : kept) GANGLION_RETURN_IF_ERROR(copy(*tensor, &writer));
    PackReport report;
    const LayerSource source = {.files = files_,
                                .kernels = kernels_,
                                .threads = threads_.get(),
                                .down_type = down_type_,
                                .rectified_up = config_.activation == FfnActivation::kDRelu,
                                .recall = options_.recall};
    for (size_t i = 0; i < layers_.size(); ++i) {
      if (!tell("packing layers", i, layers_.size())) return Status(Code::kCancelled, "interrupted");
      GANGLION_ASSIGN_OR_RETURN(const calibration::LayerSamples samples, samples_->read(i));
      GANGLION_ASSIGN_OR_RETURN(
          const PackLayerReport layer,
          calibration::write_layer(layers_[i], source, samples.inputs, samples.experts, &writer));
      report.layers.push_back(layer);
      const PackedLayer& l = layers_[i];
      if (l.rank > 0) {
        report.predictor_bytes += l.experts * (l.rank * base::row_bytes(TensorType::kQ8_0, l.dim) +
                                               l.neurons * base::row_bytes(TensorType::kQ8_0, l.rank));
      }
    }
    report.bytes = writer.data_bytes();
    report.tokens = tokens_;
    GANGLION_RETURN_IF_ERROR(writer.finish());
    return report;
  }

  static std::string prefix(size_t layer) { return "blk." + std::to_string(layer) + "."; }

  const PackOptions& options_;
  ProgressFn progress_;
  void* context_;
  std::unique_ptr<format::GgufModel> file_;
  model_config::ModelConfig config_;
  model::WeightMap weights_;
  std::vector<platform::File> files_;
  const kernels::KernelTable* kernels_ = nullptr;
  std::unique_ptr<platform::ThreadPool> threads_;
  DownType down_type_ = DownType::kQ6;
  bool known_down_ = false;
  std::vector<PackedLayer> layers_;
  std::unique_ptr<ActivationSamples> samples_;
  size_t tokens_ = 0;
};

}  // namespace

Result<PackReport> pack_model(const PackOptions& options, ProgressFn progress, void* context) {
  return Packer(options, progress, context).run();
}

}  // namespace ganglion

#include "calibration/calibration_file.h"

#include <algorithm>
#include <cmath>

#include "base/units.h"

namespace ganglion::calibration {

using base::Code;
using base::Result;
using base::Status;
using base::TensorType;
using format::TensorInfo;

namespace {

constexpr uint32_t kVersion = 1;
constexpr const char* kArchitecture = "calibration";
constexpr const char* kFired = "ffn_fired";
constexpr const char* kSquares = "ffn_input_squares";
constexpr const char* kRouted = "ffn_routed";
constexpr const char* kInputs = "ffn_inputs";
constexpr const char* kExperts = "ffn_experts";
constexpr size_t kMostLayers = 4096;

std::string tensor_name(size_t layer, const char* name) {
  return "blk." + std::to_string(layer) + "." + name;
}

template <typename T>
std::span<const uint8_t> bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(T)};
}

}  // namespace

std::vector<LayerShape> layer_shapes(const ModelSource& source) {
  std::vector<LayerShape> shapes;
  for (size_t i = 0; i < source.layers().size(); ++i) {
    const FfnMatrices& f = source.layers()[i];
    shapes.push_back({f.neurons, f.experts, f.used, f.dim, source.config().layers[i].moe});
  }
  return shapes;
}

void declare_calibration(const CalibrationHeader& header, format::GgufWriter* writer) {
  writer->add_string("general.architecture", kArchitecture);
  writer->add_string("general.type", "calibration");
  writer->add_uint("ganglion.calibration.version", kVersion);
  writer->add_string("ganglion.calibration.model", header.model);
  writer->add_string("ganglion.calibration.model_name", header.model_name);
  writer->add_uint("ganglion.calibration.layers", static_cast<uint32_t>(header.layers.size()));
  writer->add_uint("ganglion.calibration.tokens", static_cast<uint32_t>(header.tokens));
  writer->add_uint("ganglion.calibration.samples", static_cast<uint32_t>(header.samples));
  writer->add_ints("ganglion.calibration.batches", {std::begin(kBatches), std::end(kBatches)});
  writer->add_ints("ganglion.calibration.groups", {header.groups.begin(), header.groups.end()});
  writer->add_strings("ganglion.calibration.sources", header.sources);
  for (size_t i = 0; i < header.layers.size(); ++i) {
    const LayerShape& layer = header.layers[i];
    writer->add_tensor(tensor_name(i, kFired), TensorType::kI32, {layer.neurons, layer.experts, kBatchCount});
    writer->add_tensor(tensor_name(i, kSquares), TensorType::kF64, {layer.dim});
    if (layer.moe) writer->add_tensor(tensor_name(i, kRouted), TensorType::kI32, {layer.experts});
    writer->add_tensor(tensor_name(i, kInputs), TensorType::kF16, {layer.dim, header.samples});
    if (layer.moe)
      writer->add_tensor(tensor_name(i, kExperts), TensorType::kI32, {layer.used, header.samples});
  }
}

uint64_t calibration_bytes(const CalibrationHeader& header) {
  format::GgufWriter counted("");
  declare_calibration(header, &counted);
  return counted.data_bytes();
}

Status write_statistics(const LayerStatistics& statistics, bool moe, format::GgufWriter* writer) {
  GANGLION_RETURN_IF_ERROR(writer->write(bytes_of(statistics.fired)));
  GANGLION_RETURN_IF_ERROR(writer->write(bytes_of(statistics.squares)));
  return moe ? writer->write(bytes_of(statistics.routed)) : base::ok_status();
}

Result<std::unique_ptr<CalibrationFile>> CalibrationFile::open(const std::string& path) {
  std::unique_ptr<CalibrationFile> file(new CalibrationFile(path));
  GANGLION_RETURN_IF_ERROR(file->read_header());
  return file;
}

Status CalibrationFile::wrong(const std::string& what) const {
  return Status(Code::kModelFile, "calibration '" + path_ + "': " + what + " - make it again");
}

Status CalibrationFile::read_header() {
  GANGLION_ASSIGN_OR_RETURN(format::GgufModel opened, format::GgufModel::open_single(path_));
  file_ = std::make_unique<format::GgufModel>(std::move(opened));
  const base::Metadata& keys = file_->metadata();
  if (!keys.has("ganglion.calibration.version")) {
    return Status(Code::kModelFile,
                  "'" + path_ + "' is no calibration file - make one with ganglion calibrate");
  }
  GANGLION_ASSIGN_OR_RETURN(const uint64_t version, keys.uint_required("ganglion.calibration.version"));
  if (version != kVersion) {
    return Status(Code::kUnsupported,
                  base::format("calibration '%s' has version %llu, this program reads %u", path_.c_str(),
                               static_cast<unsigned long long>(version), kVersion));
  }
  GANGLION_ASSIGN_OR_RETURN(header_.model, keys.string_required("ganglion.calibration.model"));
  GANGLION_ASSIGN_OR_RETURN(header_.model_name, keys.string_or("ganglion.calibration.model_name", ""));
  GANGLION_ASSIGN_OR_RETURN(header_.tokens, keys.uint_required("ganglion.calibration.tokens"));
  GANGLION_ASSIGN_OR_RETURN(header_.samples, keys.uint_required("ganglion.calibration.samples"));
  GANGLION_ASSIGN_OR_RETURN(const uint64_t layers, keys.uint_required("ganglion.calibration.layers"));
  GANGLION_ASSIGN_OR_RETURN(const std::vector<double> batches, keys.numbers("ganglion.calibration.batches"));
  GANGLION_ASSIGN_OR_RETURN(const std::vector<double> groups, keys.numbers("ganglion.calibration.groups"));
  GANGLION_ASSIGN_OR_RETURN(const base::Value* sources, keys.string_array("ganglion.calibration.sources"));
  if (layers == 0 || layers > kMostLayers)
    return wrong(base::format("%llu layers make no sense", static_cast<unsigned long long>(layers)));
  if (header_.samples == 0 || header_.samples > header_.tokens || header_.samples > kMostSamples ||
      header_.tokens > INT32_MAX) {
    return wrong(base::format("%zu samples of %zu tokens make no sense", header_.samples, header_.tokens));
  }
  if (!std::equal(batches.begin(), batches.end(), std::begin(kBatches), std::end(kBatches)) ||
      groups.size() != kBatchCount) {
    return wrong("it counts other batch sizes than 1, 2, 4, 8, 16 and 32");
  }
  for (size_t b = 0; b < kBatchCount; ++b) {
    if (!(groups[b] >= 0 && groups[b] <= static_cast<double>(header_.tokens / kBatches[b])))
      return wrong(base::format("%g batches of %u tokens make no sense", groups[b], kBatches[b]));
    header_.groups.push_back(static_cast<uint64_t>(groups[b]));
  }
  if (header_.groups[0] != header_.tokens) return wrong("not all tokens are counted");
  if (sources != nullptr) {
    base::StringArrayReader reader(*sources);
    std::string_view one;
    while (reader.next(&one)) header_.sources.emplace_back(one);
  }
  for (const format::ShardInfo& shard : file_->shards()) {
    GANGLION_ASSIGN_OR_RETURN(platform::File file, platform::File::open(shard.path));
    files_.push_back(std::move(file));
  }
  for (size_t i = 0; i < layers; ++i) GANGLION_RETURN_IF_ERROR(read_layer_shape(i));
  return base::ok_status();
}

Result<const TensorInfo*> CalibrationFile::tensor(size_t layer, const char* name, TensorType type) const {
  const TensorInfo* found = file_->find_tensor(tensor_name(layer, name));
  if (found == nullptr) return wrong("tensor '" + tensor_name(layer, name) + "' is missing");
  if (found->type != type)
    return wrong("tensor '" + found->name + "' has type " +
                 std::string(base::tensor_type_info(found->type).name) + ", not " +
                 std::string(base::tensor_type_info(type).name));
  return found;
}

Status CalibrationFile::read_layer_shape(size_t layer) {
  GANGLION_ASSIGN_OR_RETURN(const TensorInfo* fired, tensor(layer, kFired, TensorType::kI32));
  GANGLION_ASSIGN_OR_RETURN(const TensorInfo* squares, tensor(layer, kSquares, TensorType::kF64));
  GANGLION_ASSIGN_OR_RETURN(const TensorInfo* inputs, tensor(layer, kInputs, TensorType::kF16));
  LayerShape shape = {.neurons = static_cast<uint32_t>(fired->dims[0]),
                      .experts = static_cast<uint32_t>(fired->dims[1]),
                      .dim = static_cast<uint32_t>(inputs->dims[0]),
                      .moe = file_->find_tensor(tensor_name(layer, kRouted)) != nullptr};
  const auto misshapen = [&](const TensorInfo& t) {
    return wrong("tensor '" + t.name + "' has the shape " + t.shape() + ", which does not fit the others");
  };
  if (fired->dims[2] != kBatchCount || fired->dims[0] > 65536 || fired->dims[1] > 65536)
    return misshapen(*fired);
  if (squares->elements() != shape.dim || squares->dims[0] != shape.dim) return misshapen(*squares);
  if (inputs->dims[1] != header_.samples || inputs->elements() != inputs->dims[0] * inputs->dims[1])
    return misshapen(*inputs);
  if (shape.moe) {
    GANGLION_ASSIGN_OR_RETURN(const TensorInfo* routed, tensor(layer, kRouted, TensorType::kI32));
    GANGLION_ASSIGN_OR_RETURN(const TensorInfo* experts, tensor(layer, kExperts, TensorType::kI32));
    if (routed->elements() != shape.experts) return misshapen(*routed);
    if (experts->dims[1] != header_.samples || experts->dims[0] > shape.experts) return misshapen(*experts);
    shape.used = static_cast<uint32_t>(experts->dims[0]);
  } else if (shape.experts != 1) {
    return misshapen(*fired);
  }
  header_.layers.push_back(shape);
  return base::ok_status();
}

template <typename T>
Status CalibrationFile::read_values(const TensorInfo& tensor, std::vector<T>* out) const {
  out->resize(tensor.bytes / sizeof(T));
  return files_[tensor.shard]
      .read_exact(tensor.offset, {reinterpret_cast<uint8_t*>(out->data()), tensor.bytes})
      .with_context("tensor '" + tensor.name + "'");
}

Result<LayerStatistics> CalibrationFile::statistics(size_t layer) const {
  const LayerShape& shape = header_.layers[layer];
  LayerStatistics statistics;
  GANGLION_ASSIGN_OR_RETURN(const TensorInfo* fired, tensor(layer, kFired, TensorType::kI32));
  GANGLION_RETURN_IF_ERROR(read_values(*fired, &statistics.fired));
  for (size_t i = 0; i < statistics.fired.size(); ++i) {
    const size_t batch = i / (size_t{shape.experts} * shape.neurons);
    if (statistics.fired[i] < 0 || static_cast<uint64_t>(statistics.fired[i]) > header_.groups[batch])
      return wrong("tensor '" + fired->name + "' counts more batches than there were");
  }
  GANGLION_ASSIGN_OR_RETURN(const TensorInfo* squares, tensor(layer, kSquares, TensorType::kF64));
  GANGLION_RETURN_IF_ERROR(read_values(*squares, &statistics.squares));
  for (const double sum : statistics.squares) {
    if (!(sum >= 0 && std::isfinite(sum)))
      return wrong("tensor '" + squares->name + "' holds no sums of squares");
  }
  if (!shape.moe) {
    statistics.routed = {static_cast<int32_t>(header_.tokens)};
    return statistics;
  }
  GANGLION_ASSIGN_OR_RETURN(const TensorInfo* routed, tensor(layer, kRouted, TensorType::kI32));
  GANGLION_RETURN_IF_ERROR(read_values(*routed, &statistics.routed));
  for (const int32_t count : statistics.routed) {
    if (count < 0 || static_cast<uint64_t>(count) > header_.tokens)
      return wrong("tensor '" + routed->name + "' counts more tokens than there were");
  }
  return statistics;
}

Result<LayerSamples> CalibrationFile::samples(size_t layer, const kernels::KernelTable& kernels) const {
  const LayerShape& shape = header_.layers[layer];
  LayerSamples samples;
  GANGLION_ASSIGN_OR_RETURN(const TensorInfo* inputs, tensor(layer, kInputs, TensorType::kF16));
  std::vector<uint8_t> halves;
  GANGLION_RETURN_IF_ERROR(read_values(*inputs, &halves));
  samples.inputs.resize(header_.samples * shape.dim);
  kernels.dequantize[static_cast<size_t>(TensorType::kF16)](halves.data(), samples.inputs.size(),
                                                            samples.inputs.data());
  for (const float x : samples.inputs) {
    if (!std::isfinite(x)) return wrong("tensor '" + inputs->name + "' holds values that are no numbers");
  }
  if (!shape.moe) return samples;
  GANGLION_ASSIGN_OR_RETURN(const TensorInfo* experts, tensor(layer, kExperts, TensorType::kI32));
  GANGLION_RETURN_IF_ERROR(read_values(*experts, &samples.experts));
  for (const uint32_t e : samples.experts) {
    if (e >= shape.experts)
      return wrong(
          base::format("tensor '%s' names expert %u of %u", experts->name.c_str(), e, shape.experts));
  }
  return samples;
}

Status CalibrationFile::read_row(size_t layer, bool experts, size_t sample, std::vector<uint8_t>* out) const {
  GANGLION_ASSIGN_OR_RETURN(const TensorInfo* rows, experts ? tensor(layer, kExperts, TensorType::kI32)
                                                            : tensor(layer, kInputs, TensorType::kF16));
  out->resize(base::row_bytes(rows->type, rows->dims[0]));
  return files_[rows->shard].read_exact(rows->offset + sample * out->size(), *out);
}

Status CalibrationFile::check_model(const ModelSource& source) const {
  GANGLION_ASSIGN_OR_RETURN(const std::string fingerprint, source.fingerprint());
  if (fingerprint != header_.model) {
    return Status(
        Code::kInvalidArgument,
        base::format("calibration '%s' is of another model (%s%s%.12s...) than this one (%.12s...) - "
                     "calibrate this very file",
                     path_.c_str(), header_.model_name.c_str(), header_.model_name.empty() ? "" : ", ",
                     header_.model.c_str(), fingerprint.c_str()));
  }
  if (header_.layers != layer_shapes(source)) return wrong("its layers have other shapes than the model's");
  return base::ok_status();
}

}  // namespace ganglion::calibration

// The steps of a conversion: read the small files, resolve every tensor, then copy. Nothing is written before
// everything that a header can show has been checked.
#include <sys/statvfs.h>

#include <algorithm>
#include <memory>
#include <set>

#include "base/units.h"
#include "convert/architecture.h"
#include "convert/checkpoint.h"
#include "convert/tensor_copy.h"
#include "convert/tokenizer_files.h"
#include "ganglion/convert.h"
#include "platform/file.h"

namespace ganglion {

namespace {

using base::TensorType;
using convert::Checkpoint;
using convert::CheckpointTensor;
using convert::ModelPlan;
using convert::PlannedTensor;
using convert::ResolvedTensor;
using format::Json;

constexpr uint64_t kMaxConfigBytes = 16 * base::kMiB;
constexpr uint64_t kHeaderReserve = 64 * base::kMiB;  // Vocabulary and names in the output.

using ProgressFn = bool (*)(void* context, uint64_t done, uint64_t total);

struct TypeName {
  std::string_view name;
  TensorType type;
  uint32_t file_type;  // the number that general.file_type has for it
};
constexpr TypeName kTypes[] = {{"f32", TensorType::kF32, 0},
                               {"f16", TensorType::kF16, 1},
                               {"bf16", TensorType::kBF16, 32},
                               {"q8_0", TensorType::kQ8_0, 7},
                               {"q4_0", TensorType::kQ4_0, 2}};

class Converter {
 public:
  Converter(const ConvertOptions& options, ProgressFn progress, void* context)
      : options_(options), progress_(progress), context_(context), writer_(options.output_path) {}

  Result<ConvertReport> run() {
    GANGLION_RETURN_IF_ERROR(read_type());
    if (!platform::is_directory(options_.directory)) {
      return Status(Code::kModelFile, "'" + options_.directory +
                                          "' is no directory - give the one that holds "
                                          "config.json");
    }
    const std::string path = options_.directory + "/config.json";
    Result<Json> config = Json::read_file(path, kMaxConfigBytes);
    if (!config.ok() && config.status().code() == Code::kNotFound) {
      return Status(Code::kModelFile, "'" + path + "' is missing");
    }
    if (!config.ok()) return config.status();
    GANGLION_ASSIGN_OR_RETURN(plan_, convert::plan_model(config.value(), path, &writer_));
    GANGLION_ASSIGN_OR_RETURN(checkpoint_, Checkpoint::open(options_.directory));
    GANGLION_RETURN_IF_ERROR(format::check_output(options_.output_path, {}, checkpoint_.files));
    for (const PlannedTensor& tensor : plan_.tensors) GANGLION_RETURN_IF_ERROR(resolve(tensor));
    GANGLION_RETURN_IF_ERROR(check_leftovers());
    write_general();
    GANGLION_RETURN_IF_ERROR(convert::write_tokenizer(
        {.directory = options_.directory, .pre_tokenizer = options_.pre_tokenizer, .vocab = plan_.vocab},
        &writer_));
    return write();
  }

 private:
  Status read_type();
  Status resolve(const PlannedTensor& plan);
  auto place_of(const std::string& source) const {
    constexpr std::string_view kPrefix = "model.";  // Some checkpoints lack it.
    const auto found = checkpoint_.tensors.find(source);
    if (found != checkpoint_.tensors.end() || source.rfind(kPrefix, 0) != 0) return found;
    return checkpoint_.tensors.find(source.substr(kPrefix.size()));
  }
  Result<const CheckpointTensor*> find(const PlannedTensor& plan, const std::string& source);
  TensorType type_of(const ResolvedTensor& tensor);
  Status check_leftovers();
  void write_general();
  Status check_room() const;
  Result<ConvertReport> write();

  const ConvertOptions& options_;
  ProgressFn progress_;
  void* context_;
  format::GgufWriter writer_;
  const TypeName* type_ = nullptr;  // null: as stored
  ModelPlan plan_;
  Checkpoint checkpoint_;
  std::vector<ResolvedTensor> tensors_;
  std::set<std::string> used_;
  ConvertReport report_;
};

Status Converter::read_type() {
  if (options_.type.empty()) return ok_status();
  std::string known;
  for (const TypeName& type : kTypes) {
    if (type.name == options_.type) type_ = &type;
    known += (known.empty() ? "" : ", ") + std::string(type.name);
  }
  if (type_ != nullptr) return ok_status();
  return Status(Code::kInvalidArgument, "type '" + options_.type + "' is not known - known: " + known);
}

Result<const CheckpointTensor*> Converter::find(const PlannedTensor& plan, const std::string& source) {
  const auto found = place_of(source);
  if (found == checkpoint_.tensors.end()) {
    return Status(Code::kModelFile, "'" + options_.directory + "': tensor '" + source + "' is missing");
  }
  const format::SafeTensor& info = found->second.info;
  const std::string subject =
      "'" + checkpoint_.files[found->second.file].path() + "': tensor '" + source + "' has ";
  bool fits = info.shape.size() == plan.shape.size();
  std::string expected;
  for (size_t i = 0; i < plan.shape.size(); ++i) {
    fits = fits && info.shape[i] > (i == 0 ? plan.skip_rows : 0) &&
           (plan.shape[i] == 0 || info.shape[i] == plan.shape[i]);
    expected += (i > 0 ? ", " : "") + (plan.shape[i] == 0 ? "any" : std::to_string(plan.shape[i]));
  }
  if (!fits) {
    return Status(Code::kModelFile,
                  subject + "shape " + info.shape_text() + ", expected [" + expected + "] after config.json");
  }
  if (!info.type.has_value()) {
    return Status(Code::kModelFile,
                  subject + "dtype " + std::string(info.dtype) + ", expected F32, F16 or BF16");
  }
  used_.insert(found->first);
  return &found->second;
}

// Vectors and routers stay floats; embedding and head keep at least 8 bits.
TensorType Converter::type_of(const ResolvedTensor& tensor) {
  if (tensor.sources.empty() || tensor.plan->shape.size() < 2) return TensorType::kF32;
  if (type_ == nullptr) return *tensor.sources[0]->info.type;
  TensorType type = type_->type;
  if (base::tensor_type_info(type).block_elems == 1) return type;
  if (tensor.plan->is_small) return TensorType::kF32;
  if (tensor.plan->is_embedding) type = TensorType::kQ8_0;
  if (tensor.cols % base::tensor_type_info(type).block_elems == 0) return type;
  report_.other_type.push_back(tensor.plan->name);
  return TensorType::kF16;
}

Status Converter::resolve(const PlannedTensor& plan) {
  ResolvedTensor tensor;
  tensor.plan = &plan;
  if (plan.optional && place_of(plan.sources[0]) == checkpoint_.tensors.end()) return ok_status();
  for (const std::string& source : plan.sources) {
    GANGLION_ASSIGN_OR_RETURN(const CheckpointTensor* found, find(plan, source));
    if (!tensor.sources.empty() && found->info.type != tensor.sources[0]->info.type && type_ == nullptr) {
      return Status(Code::kModelFile, "'" + options_.directory + "': tensors '" + plan.sources[0] +
                                          "' and '" + source +
                                          "' have different dtypes - name one with --type");
    }
    tensor.sources.push_back(found);
  }
  const std::vector<uint64_t>& shape = tensor.sources.empty() ? plan.shape : tensor.sources[0]->info.shape;
  tensor.rows = shape.size() > 1 ? shape[0] - plan.skip_rows : 1;
  tensor.cols = shape.back();
  tensor.type = type_of(tensor);
  tensors_.push_back(std::move(tensor));
  return ok_status();
}

// Everything else must be known to be of no use.
Status Converter::check_leftovers() {
  for (const auto& [name, tensor] : checkpoint_.tensors) {
    if (used_.count(name) > 0) continue;
    const bool known = name.find("rotary_emb.inv_freq") != std::string::npos ||
                       name.find("predictor") != std::string::npos ||
                       (plan_.tied && name == "lm_head.weight");
    if (!known) {
      return Status(Code::kUnsupported, "'" + checkpoint_.files[tensor.file].path() + "': tensor '" + name +
                                            "' is not known in " + plan_.architecture + " models");
    }
    report_.skipped.push_back(name);
  }
  return ok_status();
}

void Converter::write_general() {
  std::string name = options_.directory;
  while (name.size() > 1 && name.back() == '/') name.pop_back();
  if (const size_t slash = name.rfind('/'); slash != std::string::npos) name.erase(0, slash + 1);
  writer_.add_string("general.type", "model");
  if (!name.empty() && name != ".") writer_.add_string("general.name", name);
  // As stored: what most matrices are.
  TensorType type = TensorType::kF32;
  uint64_t most = 0;
  for (const ResolvedTensor& tensor : tensors_) {
    if (tensor.bytes() > most) type = tensor.type;
    most = std::max(most, tensor.bytes());
  }
  const auto* stored =
      std::find_if(std::begin(kTypes), std::end(kTypes), [&](const TypeName& t) { return t.type == type; });
  writer_.add_uint("general.file_type", type_ != nullptr ? type_->file_type : stored->file_type);
  writer_.add_uint("general.quantization_version", 2);
}

Status Converter::check_room() const {
  const std::string& path = options_.output_path;
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  struct statvfs fs = {};
  if (::statvfs(folder.c_str(), &fs) != 0) return Status(Code::kIo, "there is no folder '" + folder + "'");
  const uint64_t free = uint64_t{fs.f_bavail} * fs.f_frsize;
  const uint64_t need = writer_.data_bytes() + kHeaderReserve;
  if (free >= need) return ok_status();
  return Status(Code::kResources,
                base::format("'%s' has %s free, %s are needed", folder.c_str(),
                             base::format_bytes(free).c_str(), base::format_bytes(need).c_str()));
}

Result<ConvertReport> Converter::write() {
  for (const ResolvedTensor& tensor : tensors_) {
    writer_.add_tensor(tensor.plan->name, tensor.type, tensor.gguf_dims());
  }
  GANGLION_RETURN_IF_ERROR(check_room());
  GANGLION_RETURN_IF_ERROR(writer_.begin_data());
  const uint64_t total = writer_.data_bytes();
  uint64_t done = 0;
  for (const ResolvedTensor& tensor : tensors_) {
    if (progress_ != nullptr && !progress_(context_, done, total))
      return Status(Code::kCancelled, "interrupted");
    GANGLION_RETURN_IF_ERROR(convert::copy_tensor(checkpoint_, tensor, &writer_));
    done += tensor.bytes();
  }
  GANGLION_RETURN_IF_ERROR(writer_.finish());
  report_.architecture = plan_.architecture;
  report_.activation = plan_.activation;
  report_.tensors = tensors_.size();
  report_.bytes = total;
  return report_;
}

}  // namespace

Result<ConvertReport> convert_model(const ConvertOptions& options, ProgressFn progress, void* context) {
  return Converter(options, progress, context).run();
}

}  // namespace ganglion

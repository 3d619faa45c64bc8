#include "format/model_fingerprint.h"

#include <algorithm>
#include <vector>

#include "base/sha256.h"

namespace ganglion::format {

using base::Result;
using base::Status;

Result<std::string> model_fingerprint(const GgufModel& model, std::span<const platform::File> files) {
  GANGLION_ASSIGN_OR_RETURN(const std::string architecture,
                            model.metadata().string_required("general.architecture"));
  base::Sha256 sha;
  const auto add = [&](const void* bytes, size_t count) {
    sha.update({static_cast<const uint8_t*>(bytes), count});
  };
  const auto add_text = [&](const std::string& text) { add(text.c_str(), text.size() + 1); };
  for (const auto& [key, value] : model.metadata().values()) {
    if (key.rfind(architecture + ".", 0) != 0 && key.rfind("ganglion.ffn.", 0) != 0) continue;
    add_text(key);
    add_text(value.text);
    add(&value.uint_value, sizeof value.uint_value);
    add(&value.int_value, sizeof value.int_value);
    add(&value.float_value, sizeof value.float_value);
    add(&value.bool_value, sizeof value.bool_value);
    add(value.packed.data(), value.packed.size());
  }
  std::vector<const TensorInfo*> tensors;
  for (const TensorInfo& tensor : model.tensors()) tensors.push_back(&tensor);
  std::sort(tensors.begin(), tensors.end(),
            [](const TensorInfo* a, const TensorInfo* b) { return a->name < b->name; });
  constexpr uint64_t kSample = 4096;
  std::vector<uint8_t> sample;
  for (const TensorInfo* tensor : tensors) {
    add_text(tensor->name);
    add(&tensor->type, sizeof tensor->type);
    add(tensor->dims, sizeof tensor->dims);
    for (const uint64_t at : {uint64_t{0}, tensor->bytes / 2}) {
      sample.resize(std::min(kSample, tensor->bytes - at));
      GANGLION_RETURN_IF_ERROR(files[tensor->shard]
                                   .read_exact(tensor->offset + at, sample)
                                   .with_context("tensor '" + tensor->name + "'"));
      add(sample.data(), sample.size());
    }
  }
  return sha.finish();
}

}  // namespace ganglion::format

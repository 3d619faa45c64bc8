#include "calibration/activation_samples.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "engine/runtime.h"

namespace ganglion::calibration {

using base::Code;
using base::Result;
using base::Status;

namespace {
constexpr size_t kSequence = 512;

Status append(const std::string& path, const void* bytes, size_t count) {
  std::FILE* file = std::fopen(path.c_str(), "ab");
  bool written = file != nullptr && std::fwrite(bytes, 1, count, file) == count;
  if (file != nullptr) written = std::fclose(file) == 0 && written;
  return written ? base::ok_status()
                 : Status(Code::kIo, "cannot write '" + path + "': " + std::strerror(errno));
}

template <typename T>
Status read_all(const std::string& path, std::vector<T>* out) {
  std::FILE* file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) return base::ok_status();  // A layer without routing has no such file.
  std::fseek(file, 0, SEEK_END);
  out->resize(static_cast<size_t>(std::ftell(file)) / sizeof(T));
  std::rewind(file);
  const bool read = std::fread(out->data(), sizeof(T), out->size(), file) == out->size();
  std::fclose(file);
  return read ? base::ok_status() : Status(Code::kIo, "cannot read '" + path + "' back");
}
}  // namespace

// Appends what a pass shows to the files.
class SampleSink final : public engine::PassSink {
 public:
  explicit SampleSink(const ActivationSamples& samples) : samples_(samples) {}
  const Status& status() const { return status_; }

  void logits(size_t, std::span<const float>) override {}
  void ffn_input(size_t layer, size_t, std::span<const float> x) override {
    if (layer != layer_) flush();
    layer_ = layer;
    inputs_.insert(inputs_.end(), x.begin(), x.end());
  }
  void routed(size_t, size_t, std::span<const model::Routed> routed) override {
    for (const model::Routed& choice : routed) experts_.push_back(choice.expert);
  }
  // Writes what the layer just shown has collected.
  void flush() {
    if (status_.ok() && !inputs_.empty())
      status_ = append(samples_.path(layer_, "inputs"), inputs_.data(), inputs_.size() * sizeof(float));
    if (status_.ok() && !experts_.empty())
      status_ = append(samples_.path(layer_, "experts"), experts_.data(), experts_.size() * sizeof(uint32_t));
    inputs_.clear();
    experts_.clear();
  }

 private:
  const ActivationSamples& samples_;
  size_t layer_ = 0;
  std::vector<float> inputs_;
  std::vector<uint32_t> experts_;
  Status status_;
};

std::string ActivationSamples::path(size_t layer, const char* kind) const {
  return directory_ + "/layer" + std::to_string(layer) + "." + kind;
}

ActivationSamples::~ActivationSamples() {
  for (size_t layer = 0; layer < layers_; ++layer) {
    for (const char* kind : {"inputs", "experts"}) ::unlink(path(layer, kind).c_str());
  }
  ::rmdir(directory_.c_str());
}

Result<std::unique_ptr<ActivationSamples>> ActivationSamples::collect(
    const EngineOptions& options, const std::vector<int32_t>& tokens, const std::string& directory,
    const std::function<bool(uint64_t, uint64_t)>& progress) {
  EngineOptions exact = options;
  exact.context = kSequence;
  exact.exact = true;
  GANGLION_ASSIGN_OR_RETURN(std::unique_ptr<engine::Runtime> runtime, engine::Runtime::open(exact));
  GANGLION_RETURN_IF_ERROR(runtime->load(nullptr, nullptr));
  if (::mkdir(directory.c_str(), 0700) != 0) {
    return Status(Code::kIo, "cannot create '" + directory + "': " + std::strerror(errno));
  }
  std::unique_ptr<ActivationSamples> samples(new ActivationSamples(directory, tokens.size()));
  samples->layers_ = runtime->config().layers.size();
  SampleSink sink(*samples);
  model::KvSequence sequence(runtime->kv_pages(), runtime->config(), runtime->plan().context);
  std::vector<engine::Row> rows;
  for (size_t at = 0; at < tokens.size();) {
    if (!progress(at, tokens.size())) return Status(Code::kCancelled, "interrupted");
    if (sequence.length() == kSequence) sequence.clear();
    const size_t count = std::min({tokens.size() - at, kSequence - sequence.length(), runtime->chunk()});
    const size_t missing = sequence.pages_missing(count);
    const size_t free = runtime->kv_pages().free_count();
    if (missing > free) GANGLION_RETURN_IF_ERROR(runtime->grow_kv(missing - free));
    GANGLION_RETURN_IF_ERROR(sequence.prepare(count));
    rows.clear();
    for (size_t i = 0; i < count; ++i)
      rows.push_back({.token = tokens[at + i], .position = sequence.length() + i, .sequence = &sequence});
    GANGLION_RETURN_IF_ERROR(runtime->forward().run(rows, {.next_output = false}, nullptr, &sink));
    sink.flush();
    GANGLION_RETURN_IF_ERROR(sink.status());
    sequence.advance(count);
    at += count;
  }
  return samples;
}

Result<LayerSamples> ActivationSamples::read(size_t layer) const {
  LayerSamples samples;
  GANGLION_RETURN_IF_ERROR(read_all(path(layer, "inputs"), &samples.inputs));
  GANGLION_RETURN_IF_ERROR(read_all(path(layer, "experts"), &samples.experts));
  return samples;
}

}  // namespace ganglion::calibration

#include "calibration/activation_samples.h"

#include <fcntl.h>
#include <sys/file.h>
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
using base::TensorType;

namespace {
constexpr size_t kSequence = 512;
constexpr size_t kHalf = 2;  // bytes

Status system_error(const char* what, const std::string& path) {
  return Status(Code::kIo, std::string(what) + " '" + path + "': " + std::strerror(errno));
}

Status append(const std::string& path, const void* bytes, size_t count) {
  std::FILE* file = std::fopen(path.c_str(), "ab");
  bool written = file != nullptr && std::fwrite(bytes, 1, count, file) == count;
  const int error = errno;
  if (file != nullptr && std::fclose(file) != 0 && written) return system_error("cannot write", path);
  errno = error;
  return written ? base::ok_status() : system_error("cannot write", path);
}

uint64_t file_bytes(const std::string& path) {
  struct stat info = {};
  return ::stat(path.c_str(), &info) == 0 ? static_cast<uint64_t>(info.st_size) : 0;
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
    const size_t before = inputs_.size();
    inputs_.resize(before + x.size() * kHalf);
    samples_.source_.kernels().kv_store[static_cast<size_t>(kernels::KvType::kF16)](x.data(), x.size(),
                                                                                    inputs_.data() + before);
  }
  void routed(size_t, size_t, std::span<const model::Routed> routed) override {
    for (const model::Routed& choice : routed) experts_.push_back(choice.expert);
  }
  // Writes what the layer just shown has collected.
  void flush() {
    if (status_.ok() && !experts_.empty())
      status_ = append(samples_.path(layer_, "experts"), experts_.data(), experts_.size() * sizeof(uint32_t));
    if (status_.ok() && !inputs_.empty())
      status_ = append(samples_.path(layer_, "inputs"), inputs_.data(), inputs_.size());
    inputs_.clear();
    experts_.clear();
  }

 private:
  const ActivationSamples& samples_;
  size_t layer_ = 0;
  std::vector<uint8_t> inputs_;
  std::vector<uint32_t> experts_;
  Status status_;
};

ActivationSamples::ActivationSamples(const SampleOptions& options, const ModelSource& source, size_t tokens)
    : options_(options), source_(source), tokens_(tokens), keep_(options.keep_folder) {}

std::string ActivationSamples::path(size_t layer, const char* kind) const {
  return options_.folder + "/layer" + std::to_string(layer) + "." + kind;
}

ActivationSamples::~ActivationSamples() {
  if (lock_ < 0) return;  // The folder is another's.
  if (!keep_ || kept_bytes() == 0) {
    const Result<std::vector<std::string>> names = platform::list_directory(options_.folder);
    if (names.ok()) {
      for (const std::string& name : names.value())
        if (name == "state" || name.rfind("layer", 0) == 0) ::unlink((options_.folder + "/" + name).c_str());
    }
    ::rmdir(options_.folder.c_str());
  }
  ::close(lock_);
}

Result<std::unique_ptr<ActivationSamples>> ActivationSamples::open(const SampleOptions& options,
                                                                   const ModelSource& source, size_t tokens) {
  std::unique_ptr<ActivationSamples> samples(new ActivationSamples(options, source, tokens));
  GANGLION_RETURN_IF_ERROR(samples->take_up());
  return samples;
}

Status ActivationSamples::take_up() {
  const std::string& folder = options_.folder;
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return system_error("cannot create", folder);
  const std::string state = folder + "/state";
  const int fd = ::open(state.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return system_error("cannot create", state);
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    ::close(fd);
    return Status(Code::kInvalidArgument, "'" + folder + "' is being worked on by another process");
  }
  std::string found(options_.identity.size() + 1, '\0');
  const ssize_t got = ::pread(fd, found.data(), found.size(), 0);
  found.resize(got > 0 ? static_cast<size_t>(got) : 0);
  if (!found.empty() && found != options_.identity && !options_.keep_folder) {
    // What a killed process left of a folder that was never meant to stay.
    for (size_t i = 0; i < source_.layers().size(); ++i)
      for (const char* kind : {"inputs", "experts", "statistics"}) ::unlink(path(i, kind).c_str());
    if (::ftruncate(fd, 0) == 0) found.clear();
  }
  if (!found.empty() && found != options_.identity) {
    ::close(fd);
    return Status(Code::kInvalidArgument, "'" + folder +
                                              "' holds an unfinished calibration of another model or other "
                                              "tokens - remove it, or repeat the command that began it");
  }
  lock_ = fd;
  const std::string& text = options_.identity;
  if (found.empty() && ::pwrite(fd, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size()))
    return system_error("cannot write", state);
  return base::ok_status();
}

// Cuts all files back to the last sequence that every layer has; the rest was being written when it ended.
Status ActivationSamples::resume(size_t* done) const {
  *done = tokens_;
  for (size_t i = 0; i < source_.layers().size(); ++i) {
    const FfnMatrices& layer = source_.layers()[i];
    *done = std::min<size_t>(*done, file_bytes(path(i, "inputs")) / (layer.dim * kHalf));
    if (source_.config().layers[i].moe)
      *done = std::min<size_t>(*done, file_bytes(path(i, "experts")) / (layer.used * sizeof(uint32_t)));
  }
  if (*done < tokens_) *done = base::round_down(*done, kSequence);
  for (size_t i = 0; i < source_.layers().size(); ++i) {
    const FfnMatrices& layer = source_.layers()[i];
    for (const auto& [kind, row] : {std::pair("inputs", size_t{layer.dim} * kHalf),
                                    std::pair("experts", layer.used * sizeof(uint32_t))}) {
      const std::string file = path(i, kind);
      if (::truncate(file.c_str(), static_cast<off_t>(*done * row)) != 0 && errno != ENOENT)
        return system_error("cannot cut back", file);
    }
  }
  return base::ok_status();
}

Status ActivationSamples::collect(const std::vector<int32_t>& tokens,
                                  const std::function<bool(uint64_t, uint64_t)>& progress) {
  GANGLION_CHECK(tokens.size() == tokens_);
  size_t at = 0;
  GANGLION_RETURN_IF_ERROR(resume(&at));
  if (at == tokens_) return base::ok_status();
  EngineOptions exact = options_.engine;
  exact.context = std::min<size_t>(kSequence, source_.config().context_trained);
  exact.exact = true;
  GANGLION_ASSIGN_OR_RETURN(std::unique_ptr<engine::Runtime> runtime, engine::Runtime::open(exact));
  GANGLION_RETURN_IF_ERROR(runtime->load(nullptr, nullptr));
  SampleSink sink(*this);
  const size_t longest = runtime->plan().context;
  model::KvSequence sequence(runtime->kv_pages(), runtime->config(), longest);
  std::vector<engine::Row> rows;
  while (at < tokens_) {
    if (!progress(at, tokens_)) return Status(Code::kCancelled, "interrupted");
    if (at % kSequence == 0 || sequence.length() == longest) sequence.clear();
    const size_t count =
        std::min({tokens_ - at, kSequence - at % kSequence, longest - sequence.length(), runtime->chunk()});
    GANGLION_RETURN_IF_ERROR(runtime->make_room(count));
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
  return base::ok_status();
}

uint64_t ActivationSamples::kept_bytes() const {
  uint64_t bytes = 0;
  for (size_t i = 0; i < source_.layers().size(); ++i)
    bytes += file_bytes(path(i, "inputs")) + file_bytes(path(i, "experts"));
  return bytes;
}

Result<LayerSamples> ActivationSamples::read(size_t layer, size_t begin, size_t end) const {
  const FfnMatrices& ffn = source_.layers()[layer];
  LayerSamples samples;
  std::vector<uint8_t> halves((end - begin) * ffn.dim * kHalf);
  GANGLION_ASSIGN_OR_RETURN(const platform::File inputs, platform::File::open(path(layer, "inputs")));
  GANGLION_RETURN_IF_ERROR(inputs.read_exact(begin * ffn.dim * kHalf, halves));
  samples.inputs.resize((end - begin) * ffn.dim);
  source_.kernels().dequantize[static_cast<size_t>(TensorType::kF16)](halves.data(), samples.inputs.size(),
                                                                      samples.inputs.data());
  if (!source_.config().layers[layer].moe) return samples;
  GANGLION_ASSIGN_OR_RETURN(const platform::File experts, platform::File::open(path(layer, "experts")));
  samples.experts.resize((end - begin) * ffn.used);
  GANGLION_RETURN_IF_ERROR(experts.read_exact(
      begin * ffn.used * sizeof(uint32_t),
      {reinterpret_cast<uint8_t*>(samples.experts.data()), samples.experts.size() * sizeof(uint32_t)}));
  return samples;
}

std::vector<float> inputs_of_expert(const LayerSamples& samples, const FfnMatrices& ffn, uint32_t expert) {
  if (ffn.experts == 1) return samples.inputs;
  std::vector<float> inputs;
  const size_t tokens = samples.inputs.size() / ffn.dim;
  for (size_t t = 0; t < tokens; ++t) {
    const uint32_t* routed = &samples.experts[t * ffn.used];
    if (std::find(routed, routed + ffn.used, expert) == routed + ffn.used) continue;
    const auto x = samples.inputs.begin() + static_cast<ptrdiff_t>(t * ffn.dim);
    inputs.insert(inputs.end(), x, x + ffn.dim);
  }
  return inputs;
}

}  // namespace ganglion::calibration

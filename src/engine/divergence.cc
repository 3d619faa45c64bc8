#include "ganglion/divergence.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

namespace ganglion {

void log_softmax(std::span<const float> logits, std::vector<float>* out) {
  const float largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float value : logits) sum += std::exp(static_cast<double>(value - largest));
  const auto shift = static_cast<float>(std::log(sum) + static_cast<double>(largest));
  out->resize(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) (*out)[i] = logits[i] - shift;
}

double kl_divergence(std::span<const float> base, std::span<const float> log_p) {
  double divergence = 0;
  for (size_t i = 0; i < log_p.size(); ++i)
    divergence += std::exp(static_cast<double>(base[i])) * static_cast<double>(base[i] - log_p[i]);
  return divergence;
}

size_t most_likely(std::span<const float> log_p) {
  return static_cast<size_t>(std::max_element(log_p.begin(), log_p.end()) - log_p.begin());
}

ProbabilityFile::ProbabilityFile(const std::string& folder) : file_(nullptr) {
  if (folder.empty()) {
    file_ = std::tmpfile();
    return;
  }
  std::string name = folder + "/.probabilities.XXXXXX";
  const int fd = ::mkostemp(name.data(), O_CLOEXEC);
  if (fd < 0) return;
  ::unlink(name.c_str());
  file_ = ::fdopen(fd, "w+b");
  if (file_ == nullptr) ::close(fd);
}

ProbabilityFile::~ProbabilityFile() {
  if (file_ != nullptr) std::fclose(file_);
}

bool ProbabilityFile::try_write(const std::vector<float>& row) {
  return file_ != nullptr && std::fwrite(row.data(), sizeof(float), row.size(), file_) == row.size();
}

void ProbabilityFile::rewind() {
  if (file_ != nullptr) std::rewind(file_);
}

bool ProbabilityFile::try_read(std::vector<float>* row) {
  return file_ != nullptr && std::fread(row->data(), sizeof(float), row->size(), file_) == row->size();
}

}  // namespace ganglion

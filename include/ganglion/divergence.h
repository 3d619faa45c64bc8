// How far one model's next-token probabilities are from another's.
#pragma once

#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include "ganglion/error.h"

namespace ganglion {

/// log p of every token of the vocabulary.
void log_softmax(std::span<const float> logits, std::vector<float>* out);

/// Kullback-Leibler divergence in nat of log probabilities `log_p` from those of `base`, of the same size.
double kl_divergence(std::span<const float> base, std::span<const float> log_p);

/// The first of the largest.
size_t most_likely(std::span<const float> log_p);

/// A model's log probabilities, position by position, in an unnamed file; errors show when it is read.
class ProbabilityFile {
 public:
  /// In `folder`, or where temporary files go.
  explicit ProbabilityFile(const std::string& folder = "");
  ~ProbabilityFile();
  ProbabilityFile(const ProbabilityFile&) = delete;
  ProbabilityFile& operator=(const ProbabilityFile&) = delete;
  [[nodiscard]] bool try_write(const std::vector<float>& row);
  void rewind();
  [[nodiscard]] bool try_read(std::vector<float>* row);

 private:
  std::FILE* file_;
};

}  // namespace ganglion

#include "sampling/candidates.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace ganglion::sampling {

float finite_float(double value) {
  constexpr double kMax = std::numeric_limits<float>::max();
  return static_cast<float>(std::clamp(value, -kMax, kMax));
}

double Softmax::probability(const Candidate& candidate) const {
  return std::exp(static_cast<double>(candidate.logit) - max) / sum;
}

double Softmax::log_probability(float logit) const {
  return static_cast<double>(logit) - max - std::log(sum);
}

Candidates::Candidates(size_t vocab_size) {
  items_.reserve(vocab_size);
}

void Candidates::assign(std::span<const float> logits) {
  items_.clear();
  for (size_t i = 0; i < logits.size(); ++i) {
    if (std::isfinite(logits[i])) items_.push_back({static_cast<int32_t>(i), logits[i]});
  }
  sorted_ = 0;
  by_token_ = true;
}

const Candidate& Candidates::best() const {
  GANGLION_DCHECK(!items_.empty());
  return sorted_ > 0 ? items_.front() : *std::min_element(items_.begin(), items_.end(), better);
}

Softmax Candidates::softmax() const {
  Softmax result;
  result.max = best().logit;
  result.sum = 0;
  for (const Candidate& item : items_) result.sum += std::exp(static_cast<double>(item.logit) - result.max);
  return result;
}

void Candidates::sort_first(size_t count) {
  count = std::min(count, items_.size());
  if (count <= sorted_) return;
  const auto at = [this](size_t index) { return items_.begin() + static_cast<std::ptrdiff_t>(index); };
  std::partial_sort(at(sorted_), at(count), items_.end(), better);
  sorted_ = count;
  by_token_ = false;
}

void Candidates::keep_first(size_t count) {
  if (count >= items_.size()) return;
  items_.resize(count);
  sorted_ = std::min(sorted_, count);
}

void Candidates::drop_first(size_t count) {
  GANGLION_DCHECK(count < items_.size());
  items_.erase(items_.begin(), items_.begin() + static_cast<std::ptrdiff_t>(count));
  sorted_ -= std::min(sorted_, count);
}

void Candidates::scale(double factor) {
  for (Candidate& item : items_) item.logit = finite_float(static_cast<double>(item.logit) * factor);
}

void Candidates::keep_indices(std::span<const uint32_t> indices) {
  spare_.clear();
  for (const uint32_t index : indices) spare_.push_back(items_[index]);
  items_.assign(spare_.begin(), spare_.end());
  sorted_ = 0;
  by_token_ = false;
}

}  // namespace ganglion::sampling

// The tokens still in the running, with their logits. Sorts no more than a step asks for: a full sort of a
// large vocabulary costs more than all other steps together. Used by the steps and the sampler; single
// thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace ganglion::sampling {

struct Candidate {
  int32_t token;
  float logit;  ///< Always finite.
};

/// The order of preference: higher logit, then lower id.
inline bool better(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
}

/// The nearest finite float.
float finite_float(double value);

/// Softmax over all candidates: probability(c) = exp(c.logit - max) / sum.
struct Softmax {
  float max = 0;
  double sum = 1;
  double probability(const Candidate& candidate) const;
  double log_probability(float logit) const;
};

class Candidates {
 public:
  explicit Candidates(size_t vocab_size);

  /// Takes the finite ones of `logits` [V].
  void assign(std::span<const float> logits);

  size_t size() const { return items_.size(); }
  bool empty() const { return items_.empty(); }
  std::span<const Candidate> items() const { return items_; }
  const Candidate& operator[](size_t index) const { return items_[index]; }

  /// By preference. Requires: not empty.
  const Candidate& best() const;
  Softmax softmax() const;

  /// Puts the `count` best first, in order of preference. Cheap if that is so already.
  void sort_first(size_t count);
  void keep_first(size_t count);
  void drop_first(size_t count);

  template <typename Predicate>
  void keep_if(Predicate keep) {
    size_t kept = 0;
    size_t sorted = 0;
    for (size_t i = 0; i < items_.size(); ++i) {
      if (!keep(items_[i])) continue;
      if (i < sorted_) ++sorted;
      items_[kept++] = items_[i];
    }
    items_.resize(kept);
    sorted_ = sorted;
  }

  /// Replaces logits by change(candidate), made finite.
  template <typename Change>
  void change_all(Change change) {
    for (Candidate& item : items_) item.logit = finite_float(change(item));
    sorted_ = 0;
  }

  /// As change_all, only for the entries of `listed`, which have a member `token` and ascend by it.
  template <typename Entry, typename Change>
  void change_listed(std::span<const Entry> listed, Change change);

  /// As change_all with a change that keeps the order.
  void scale(double factor);

  /// Keeps those whose index is listed, in that order.
  void keep_indices(std::span<const uint32_t> indices);

  size_t memory_bytes() const { return (items_.capacity() + spare_.capacity()) * sizeof(Candidate); }

 private:
  std::vector<Candidate> items_;
  std::vector<Candidate> spare_;  ///< For keep_indices.
  size_t sorted_ = 0;             ///< So many of the best stand first, in order.
  bool by_token_ = false;         ///< Ids ascend.
};

template <typename Entry, typename Change>
void Candidates::change_listed(std::span<const Entry> listed, Change change) {
  const auto by_token = [](const auto& a, int32_t token) { return a.token < token; };
  const auto search = [&](auto range, int32_t token) {
    size_t low = 0;
    size_t high = range.size();
    while (low < high) {
      const size_t middle = low + (high - low) / 2;
      by_token(range[middle], token) ? low = middle + 1 : high = middle;
    }
    return low < range.size() && range[low].token == token ? low : range.size();
  };
  if (by_token_) {
    for (const Entry& entry : listed) {
      const size_t index = search(std::span<const Candidate>(items_), entry.token);
      if (index < items_.size()) items_[index].logit = finite_float(change(items_[index], entry));
    }
  } else {
    for (Candidate& item : items_) {
      const size_t index = search(listed, item.token);
      if (index < listed.size()) item.logit = finite_float(change(item, listed[index]));
    }
  }
  sorted_ = 0;
}

}  // namespace ganglion::sampling

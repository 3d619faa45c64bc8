// Keeps all logits of an evaluation, for tests.
#pragma once

#include <span>
#include <vector>

#include "ganglion/session.h"

namespace ganglion::convert {

class AllLogits final : public LogitSink {
 public:
  void logits(size_t position, std::span<const float> values) override {
    if (rows.size() <= position) rows.resize(position + 1);
    rows[position].assign(values.begin(), values.end());
  }
  std::vector<std::vector<float>> rows;  ///< By position.
};

}  // namespace ganglion::convert

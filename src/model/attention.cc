#include "model/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace ganglion::model {

using kernels::KernelTable;

void store_kv(const KernelTable& kernels, const KvLayout& layout, const KvSequence& sequence, size_t layer,
              size_t position, const float* k, const float* v) {
  uint8_t* page = sequence.page(layer, position);
  const auto slot = static_cast<uint32_t>(position % kPagePositions);
  const kernels::KvStoreFn store = kernels.kv_store[static_cast<size_t>(layout.type)];
  for (uint32_t h = 0; h < layout.kv_heads; ++h) {
    store(k + size_t{h} * layout.key_dims, layout.key_dims, page + layout.key_offset(h, slot));
    if (!layout.value_in_key) {
      store(v + size_t{h} * layout.value_dims, layout.value_dims, page + layout.value_offset(h, slot));
    }
  }
}

void attend(const KernelTable& kernels, const KvLayout& layout, const AttentionShape& shape,
            const KvSequence& sequence, size_t layer, size_t position, uint32_t head, const float* q,
            float* out) {
  const kernels::KvDotFn dot = kernels.kv_dot[static_cast<size_t>(layout.type)];
  const kernels::KvAxpyFn axpy = kernels.kv_axpy[static_cast<size_t>(layout.type)];
  const uint32_t kv_head = head / (shape.heads / layout.kv_heads);
  const size_t value_stride = layout.value_in_key ? layout.key_bytes : layout.value_bytes;
  const size_t first = shape.window == 0 || position < shape.window ? 0 : position + 1 - shape.window;
  float largest = shape.sinks != nullptr ? shape.sinks[head] : -std::numeric_limits<float>::infinity();
  float sum = shape.sinks != nullptr ? 1 : 0;
  std::fill(out, out + layout.value_dims, 0.0F);
  alignas(64) float scores[kPagePositions];
  for (size_t tile = first / kPagePositions; tile <= position / kPagePositions; ++tile) {
    const size_t begin = std::max(first, tile * kPagePositions);
    const size_t count = std::min(position + 1, (tile + 1) * kPagePositions) - begin;
    const auto slot = static_cast<uint32_t>(begin % kPagePositions);
    const uint8_t* page = sequence.page(layer, begin);
    dot(q, page + layout.key_offset(kv_head, slot), layout.key_bytes, count, layout.key_dims, scores);
    float tile_largest = largest;
    for (size_t i = 0; i < count; ++i) {
      scores[i] *= shape.scale;
      if (shape.softcap > 0) scores[i] = shape.softcap * std::tanh(scores[i] / shape.softcap);
      tile_largest = std::max(tile_largest, scores[i]);
    }
    if (tile_largest > largest) {
      const float shrink = std::exp(largest - tile_largest);
      for (uint32_t i = 0; i < layout.value_dims; ++i) out[i] *= shrink;
      sum *= shrink;
      largest = tile_largest;
    }
    sum += kernels.exp_sum(scores, count, largest);
    axpy(scores, page + layout.value_offset(kv_head, slot), value_stride, count, layout.value_dims, out);
  }
  const float share = 1 / sum;
  for (uint32_t i = 0; i < layout.value_dims; ++i) out[i] *= share;
}

}  // namespace ganglion::model

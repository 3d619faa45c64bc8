// Attention over the paged KV cache, for one row (one position of one sequence) and one query head at a time,
// by the online softmax: no matrix of scores, whatever the context. Never waits; knows no weights.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernel_table.h"
#include "model/kv_cache.h"

namespace ganglion::model {

/// What all heads of a layer share.
struct AttentionShape {
  uint32_t heads = 0;
  uint32_t window = 0;  ///< 0: everything.
  float scale = 1;
  float softcap = 0;             ///< 0: none.
  const float* sinks = nullptr;  ///< [heads] logits that take weight but carry no value; null: none.
};

/// Stores the keys and values of one position. k: [kv_heads][key_dims]; v: [kv_heads][value_dims] (ignored
/// with MLA).
void store_kv(const kernels::KernelTable& kernels, const KvLayout& layout, const KvSequence& sequence,
              size_t layer, size_t position, const float* k, const float* v);

/// out [value_dims] = softmax(scale * q . K) V for query head `head` at `position`, which sees itself and
/// what came before, as far as the window reaches. Arithmetic: tiles are pages (64 positions from a multiple
/// of 64), taken in ascending order, so that the result does not depend on chunk, batch or threads. Source:
/// online softmax (1805.02867) as in FlashAttention (2205.14135); sinks as in gpt-oss.
void attend(const kernels::KernelTable& kernels, const KvLayout& layout, const AttentionShape& shape,
            const KvSequence& sequence, size_t layer, size_t position, uint32_t head, const float* q,
            float* out);

}  // namespace ganglion::model

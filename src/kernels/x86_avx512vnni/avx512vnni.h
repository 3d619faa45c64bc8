// The parts that avx512vnni_table() is put together from. Internal to kernels/; one accessor per object file.
#pragma once

#include "kernels/kernel_table.h"

namespace ganglion::kernels {

/// kTypeSlots entries each, null for types that the part does not know.
const MatmulFn* avx512vnni_matmul_small();
const MatmulFn* avx512vnni_matmul_float();
/// Q4_0 for two to six tokens. False: nothing done, the shape does not suit.
bool avx512vnni_try_matmul_nibbles(const MatmulArgs& args);
/// Tiles for many tokens.
const MatmulFn* avx512vnni_gemm_small();
const MatmulFn* avx512vnni_gemm_super();
/// By DownType, null for types of floats.
const DownAxpyFn* avx512vnni_down();
/// Replaces the products with rows of the KV cache.
void avx512vnni_set_kv(KernelTable* table);

/// Needs AVX-512 F, BW, DQ, VL and VNNI, and what avx2_table() needs.
const KernelTable& avx512vnni_table();

}  // namespace ganglion::kernels

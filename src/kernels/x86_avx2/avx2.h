// The parts that avx2_table() is put together from. Internal to kernels/; one accessor per object file.
#pragma once

#include "kernels/kernel_table.h"

namespace ganglion::kernels {

/// kTypeSlots entries each, null for types that the part does not know.
const MatmulFn* avx2_matmul_small();
const MatmulFn* avx2_matmul_super();
const MatmulFn* avx2_matmul_float();
/// Tiles for many tokens; with few, they call the parts above.
const MatmulFn* avx2_gemm_small();
const MatmulFn* avx2_gemm_super();
/// Products of the remaining types: reference dequantisation of pieces of a row, vector dot.
const MatmulFn* avx2_matmul_dequantized();
/// Puts the KV entries (vector entries) of AVX2 into a table.
void avx2_set_kv(KernelTable* table);
void avx2_set_vector(KernelTable* table);
/// By DownType.
const DownAxpyFn* avx2_down();

/// Needs AVX2, FMA and F16C.
const KernelTable& avx2_table();

}  // namespace ganglion::kernels

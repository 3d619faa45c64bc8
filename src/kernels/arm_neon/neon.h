// The parts that neon_table() is put together from. Internal to kernels/; one accessor per object file.
#pragma once

#include "kernels/kernel_table.h"

namespace ganglion::kernels {

/// kTypeSlots entries each, null for types that the part does not know.
const MatmulFn* neon_matmul_small();
const MatmulFn* neon_matmul_super();
const MatmulFn* neon_matmul_float();
/// Tiles for many tokens; with few, they call the parts above.
const MatmulFn* neon_gemm_small();
const MatmulFn* neon_gemm_super();
/// Products of the remaining types: reference dequantisation of pieces of a row, vector dot.
const MatmulFn* neon_matmul_dequantized();
/// Puts the KV entries (vector entries) of NEON into a table.
void neon_set_kv(KernelTable* table);
void neon_set_vector(KernelTable* table);
/// By DownType.
const DownAxpyFn* neon_down();

/// Needs ARMv8.0 alone, which every processor of this architecture has.
const KernelTable& neon_table();

}  // namespace ganglion::kernels

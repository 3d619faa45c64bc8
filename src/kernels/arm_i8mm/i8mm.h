// The parts in which i8mm_table() differs from dotprod_table(): products of many tokens, arm_neon/'s sources
// compiled for the matrix instructions. Internal to kernels/; one accessor per object file.
#pragma once

#include "kernels/kernel_table.h"

namespace ganglion::kernels {

/// kTypeSlots entries each, null for types that the part does not know; with few tokens, they call dotprod's.
const MatmulFn* i8mm_gemm_small();
const MatmulFn* i8mm_gemm_super();

/// Needs the int8 matrix multiply extension, and what dotprod_table() needs.
const KernelTable& i8mm_table();

}  // namespace ganglion::kernels

// The parts in which dotprod_table() differs from neon_table(): arm_neon/'s sources, compiled for the dot
// product instructions. Internal to kernels/; one accessor per object file.
#pragma once

#include "kernels/kernel_table.h"

namespace ganglion::kernels {

/// kTypeSlots entries each, null for types that the part does not know.
const MatmulFn* dotprod_matmul_small();
const MatmulFn* dotprod_matmul_super();
/// Tiles for many tokens; with few, they call the parts above.
const MatmulFn* dotprod_gemm_small();
const MatmulFn* dotprod_gemm_super();

/// Needs the dot product extension of ARMv8.2.
const KernelTable& dotprod_table();

}  // namespace ganglion::kernels

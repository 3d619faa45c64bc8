// AVX-VNNI: the AVX2 kernels of 32-element blocks with vpdpbusd, compiled from the same sources. Internal to
// kernels/; one accessor per object file.
#pragma once

#include "kernels/kernel_table.h"

namespace ganglion::kernels {

/// kTypeSlots entries each, null for types that the part does not know.
const MatmulFn* avxvnni_matmul_small();
const MatmulFn* avxvnni_gemm_small();

/// Needs AVX2, FMA, F16C and AVX-VNNI.
const KernelTable& avxvnni_table();

}  // namespace ganglion::kernels

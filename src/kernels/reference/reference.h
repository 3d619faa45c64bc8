// The parts that reference_table() is put together from. Internal to kernels/; one accessor per object file.
#pragma once

#include "kernels/kernel_table.h"

namespace ganglion::kernels {

/// kTypeSlots entries each, null for types that the part does not know.
const DequantizeFn* reference_dequantize();
const DequantizeFn* reference_dequantize_iq();
const MatmulFn* reference_matmul();

struct KvKernels {
  KvDotFn dot[kKvTypes];
  KvAxpyFn axpy[kKvTypes];
  KvStoreFn store[kKvTypes];
};
const KvKernels& reference_kv();
/// By DownType.
const DownAxpyFn* reference_down();

}  // namespace ganglion::kernels

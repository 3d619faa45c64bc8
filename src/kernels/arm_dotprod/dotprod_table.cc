// The table of the dot product instructions: integer products of its own, NEON's kernels for the rest.
#include "kernels/arm_dotprod/dotprod.h"
#include "kernels/arm_neon/neon.h"

namespace ganglion::kernels {
namespace {

KernelTable make_table() {
  KernelTable table = neon_table();
  table.name = "dotprod";
  const MatmulFn* const parts[] = {dotprod_gemm_small(), dotprod_gemm_super()};
  for (const MatmulFn* part : parts) {
    for (size_t slot = 0; slot < kTypeSlots; ++slot) {
      if (part[slot]) table.matmul[slot] = part[slot];
    }
  }
  return table;
}

}  // namespace

const KernelTable& dotprod_table() {
  static const KernelTable table = make_table();
  return table;
}

}  // namespace ganglion::kernels

// The table of the int8 matrix instructions: products of many tokens of its own, dotprod's for the rest.
#include "kernels/arm_dotprod/dotprod.h"
#include "kernels/arm_i8mm/i8mm.h"

namespace ganglion::kernels {
namespace {

KernelTable make_table() {
  KernelTable table = dotprod_table();
  table.name = "i8mm";
  const MatmulFn* const parts[] = {i8mm_gemm_small(), i8mm_gemm_super()};
  for (const MatmulFn* part : parts) {
    for (size_t slot = 0; slot < kTypeSlots; ++slot) {
      if (part[slot]) table.matmul[slot] = part[slot];
    }
  }
  return table;
}

}  // namespace

const KernelTable& i8mm_table() {
  static const KernelTable table = make_table();
  return table;
}

}  // namespace ganglion::kernels

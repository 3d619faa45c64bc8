// The NEON table: its own kernels where there are any, the reference's for the rest (dequantisation).
#include "kernels/arm_neon/neon.h"

namespace ganglion::kernels {
namespace {

KernelTable make_table() {
  KernelTable table = reference_table();
  table.name = "neon";
  const MatmulFn* const parts[] = {neon_matmul_float(), neon_matmul_dequantized(), neon_gemm_small(),
                                   neon_gemm_super()};
  for (const MatmulFn* part : parts) {
    for (size_t slot = 0; slot < kTypeSlots; ++slot) {
      if (part[slot]) table.matmul[slot] = part[slot];
    }
  }
  neon_set_kv(&table);
  neon_set_vector(&table);
  for (size_t type = 0; type < kDownTypes; ++type) table.down_axpy[type] = neon_down()[type];
  return table;
}

}  // namespace

const KernelTable& neon_table() {
  static const KernelTable table = make_table();
  return table;
}

}  // namespace ganglion::kernels

// The AVX2 table: its own kernels where there are any, the reference's for the rest (dequantisation).
#include "kernels/x86_avx2/avx2.h"

namespace ganglion::kernels {
namespace {

KernelTable make_table() {
  KernelTable table = reference_table();
  table.name = "avx2";
  const MatmulFn* const parts[] = {avx2_matmul_small(),       avx2_matmul_super(), avx2_matmul_float(),
                                   avx2_matmul_dequantized(), avx2_gemm_small(),   avx2_gemm_super()};
  for (const MatmulFn* part : parts) {
    for (size_t slot = 0; slot < kTypeSlots; ++slot) {
      if (part[slot]) table.matmul[slot] = part[slot];
    }
  }
  avx2_set_kv(&table);
  avx2_set_vector(&table);
  for (size_t type = 0; type < kDownTypes; ++type) table.down_axpy[type] = avx2_down()[type];
  return table;
}

}  // namespace

const KernelTable& avx2_table() {
  static const KernelTable table = make_table();
  return table;
}

}  // namespace ganglion::kernels

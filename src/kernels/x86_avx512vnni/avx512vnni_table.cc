// The AVX-512 VNNI table: its own kernels where there are any, those of AVX2 for the rest.
#include "kernels/x86_avx512vnni/avx512vnni.h"

#include "kernels/x86_avx2/avx2.h"

namespace ganglion::kernels {
namespace {

KernelTable make_table() {
  KernelTable table = avx2_table();
  table.name = "avx512vnni";
  const MatmulFn* const parts[] = {avx512vnni_matmul_small(), avx512vnni_matmul_float(),
                                   avx512vnni_gemm_super()};
  for (const MatmulFn* part : parts) {
    for (size_t slot = 0; slot < kTypeSlots; ++slot) {
      if (part[slot]) table.matmul[slot] = part[slot];
    }
  }
  for (size_t type = 0; type < kDownTypes; ++type) {
    if (avx512vnni_down()[type]) table.down_axpy[type] = avx512vnni_down()[type];
  }
  avx512vnni_set_kv(&table);
  return table;
}

}  // namespace

const KernelTable& avx512vnni_table() {
  static const KernelTable table = make_table();
  return table;
}

}  // namespace ganglion::kernels

// See x86_avx2/matmul_small.cc.
#include "kernels/x86_avxvnni/avxvnni.h"

#include "kernels/x86_avx2/matmul_small.cc"

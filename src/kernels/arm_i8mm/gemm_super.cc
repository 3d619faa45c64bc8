// arm_neon/gemm_super.cc, compiled for the int8 matrix instructions.
#include "kernels/arm_neon/gemm_super.cc"

// arm_neon/gemm_small.cc, compiled for the int8 matrix instructions.
#include "kernels/arm_neon/gemm_small.cc"

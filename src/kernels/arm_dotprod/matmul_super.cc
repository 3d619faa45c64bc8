// arm_neon/matmul_super.cc, compiled for the dot product instructions.
#include "kernels/arm_neon/matmul_super.cc"

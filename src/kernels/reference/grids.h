// Access to the codebooks of the IQ types. Source: GGUF type definitions; checked by tests/fixtures/quants.
#pragma once

#include <cstdint>

namespace ganglion::kernels {

/// Entries of 16 bits. IQ1 and IQ2: eight codes of 2 bits, first element in the lowest bits;
/// IQ3: four codes of 4 bits (of which 3 are used). The values that codes stand for are in dequantize_iq.cc.
struct IqGrids {
  const uint16_t* iq1;      ///< 2048 entries, for IQ1_S and IQ1_M.
  const uint16_t* iq2_xxs;  ///< 256
  const uint16_t* iq2_xs;   ///< 512
  const uint16_t* iq2_s;    ///< 1024
  const uint16_t* iq3_xxs;  ///< 256
  const uint16_t* iq3_s;    ///< 512
};

const IqGrids& iq_grids();

}  // namespace ganglion::kernels

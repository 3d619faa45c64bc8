#include "ganglion/version.h"

#include "kernels/kernel_table.h"

namespace ganglion {

const char* version() {
  return GANGLION_VERSION;
}

std::string build_facts() {
  std::string facts = std::string("ganglion ") + version() + ", compiler " + __VERSION__;
#ifdef NDEBUG
  facts += ", release";
#else
  facts += ", debug";
#endif
  facts += ", kernels:";
  for (const kernels::KernelTable* table : kernels::available_tables())
    facts += std::string(" ") + table->name;
  return facts;
}

}  // namespace ganglion

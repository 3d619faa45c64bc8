// The page at "/": one file without network assets, built into the program.
#pragma once

#include <string_view>

namespace ganglion::server {

std::string_view web_ui();

}  // namespace ganglion::server

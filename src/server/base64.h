// Bytes as base64 (RFC 4648), for embeddings.
#pragma once

#include <string>
#include <string_view>

namespace ganglion::server {

std::string base64(std::string_view bytes);

}  // namespace ganglion::server

// The text that models are calibrated on where the user gives none; text/README.md says where it is from.
#pragma once

#include <string_view>

namespace ganglion::calibration {

/// About 200 KB of UTF-8: prose in four languages, code, JSON, Markdown, plays, questions and answers.
std::string_view calibration_text();

}  // namespace ganglion::calibration

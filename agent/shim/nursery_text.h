#pragma once

#include <string_view>

namespace regroup::shim {

extern const std::string_view kNurseryText;  // nursery.py.

}  // namespace regroup::shim

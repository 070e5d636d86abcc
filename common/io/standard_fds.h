#pragma once

namespace regroup::io {

// Opens descriptors 0, 1 and 2 on /dev/null where they are closed, so that no descriptor of this
// process takes their number: what is printed would land in it, and children would inherit it.
//
// Libraries open descriptors while they are initialised, before main. So a program that calls this
// first in its main has it called before those as well: linking it is what counts.
void OpenStandardDescriptors();

}  // namespace regroup::io

#pragma once

#include <cstddef>
#include <functional>
#include <span>

namespace regroup::worker {

// The memory of a test program that a GPU is to read and write where it is: all that operator new
// and mmap give, from one region. So tests that were written for the CPU run on a GPU as they are;
// what is registered with CUDA is that region.
std::span<std::byte> VisibleMemory();

// Calls it on a thread whose stack is part of that memory too, and returns its result.
int OnVisibleStack(const std::function<int()>& call);

}  // namespace regroup::worker

"""What ptxas made of every kernel: nothing is spilled, no stack, and few enough registers for the blocks that are to be on
a multiprocessor at once. Arguments: files with what `nvcc -Xptxas -v` has said, one for each .cu file."""
import os
import re
import sys
import unittest

# A multiprocessor has 65,536 registers: 64 are four blocks of 256 threads, 255 are two of 128.
MOST_REGISTERS = {("attention", "80"): 254, ("attention", "90"): 208, ("tensor_attention", "80"): 255,
                  ("tensor_attention", "90"): 255}
USUAL_REGISTERS = 64

_KERNEL = re.compile(r"Compiling entry function '(\w+)' for 'sm_(\d+)'\n"
                     r".*\n\s+(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads\n"
                     r".*Used (\d+) registers")


def complaints(name, log):
    """What is wrong with the kernels of name.cu, a line each."""
    kernels = _KERNEL.findall(log)
    found = []
    if not kernels or len(kernels) != log.count("Compiling entry function"):
        found.append(f"{name}.cu: {log.count('Compiling entry function')} kernels, {len(kernels)} with what they use")
    for kernel, gpu, stack, stores, loads, registers in kernels:
        if int(stack) or int(stores) or int(loads):
            found.append(f"{name}.cu: {kernel}: {stack} bytes of stack, spills {stores} and loads {loads} bytes")
        most = MOST_REGISTERS.get((name, gpu), USUAL_REGISTERS)
        if int(registers) > most:
            found.append(f"{name}.cu: {kernel}: {registers} registers, at most {most}")
    return found


class PtxasTest(unittest.TestCase):
    logs = []

    def test_no_kernel_spills_or_takes_too_many_registers(self):
        self.assertGreaterEqual(len(self.logs), 16)
        found = []
        for path in self.logs:
            with open(path, encoding="utf-8") as f:
                found += complaints(os.path.basename(path).split(".")[0], f.read())
        self.assertEqual(found, [])

    def test_what_is_wrong_is_said(self):
        log = ("ptxas info    : Compiling entry function 'k' for 'sm_90'\nptxas info    : Function properties for k\n"
               "    {} bytes stack frame, {} bytes spill stores, 0 bytes spill loads\n"
               "ptxas info    : Used {} registers, used 1 barriers\n")
        self.assertEqual(complaints("sums", log.format(0, 0, 64)), [])
        self.assertEqual(complaints("attention", log.format(0, 0, 208)), [])
        self.assertEqual(complaints("attention", log.format(0, 0, 209)), ["attention.cu: k: 209 registers, at most 208"])
        self.assertEqual(complaints("sums", log.format(0, 0, 65)), ["sums.cu: k: 65 registers, at most 64"])
        self.assertEqual(complaints("sums", log.format(8, 4, 10)),
                         ["sums.cu: k: 8 bytes of stack, spills 4 and loads 0 bytes"])
        self.assertEqual(complaints("sums", ""), ["sums.cu: 0 kernels, 0 with what they use"])
        self.assertEqual(complaints("sums", "Compiling entry function 'k' for 'sm_90'\n"),
                         ["sums.cu: 1 kernels, 0 with what they use"])


if __name__ == "__main__":
    PtxasTest.logs = sys.argv[1:]
    unittest.main(argv=sys.argv[:1])

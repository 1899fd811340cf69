from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

LARGE_AFTER_A_LARGER_ONE = """
import ctypes
from enode_django.concurrency.garbage import LARGE, map_large_blocks

class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", *"abcdef")]

library = ctypes.CDLL(None)
library.mallinfo2.restype = Info
if {tuned}:
    map_large_blocks()
block = bytes(16 * LARGE)
del block
before = library.mallinfo2().hblks
block = bytes(2 * LARGE)
print(library.mallinfo2().hblks - before)
"""


def mapped(*, tuned: bool) -> int:
    code = LARGE_AFTER_A_LARGER_ONE.format(tuned=tuned)
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=240)
    return int(ran.stdout)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="the C library is not glibc 2.33 or later")
def test_large_blocks_are_mapped_also_after_a_larger_one_was_freed() -> None:
    assert mapped(tuned=True) == 1
    assert mapped(tuned=False) == 0

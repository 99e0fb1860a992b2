"""How much memory an object holds, with everything that it alone refers to."""

import gc
import io
import sys
from types import FunctionType, ModuleType

import numpy as np

_SHARED = (type, ModuleType, FunctionType, io.IOBase)


def deep_bytes(*roots: object) -> int:
    """Bytes of the objects and of all that can be reached from them.

    Classes, modules, functions and open files do not count; arrays count with the memory they view.
    """
    seen: set[int] = set()
    todo, total = list(roots), 0
    while todo:
        one = todo.pop()
        if id(one) in seen or isinstance(one, _SHARED):
            continue
        seen.add(id(one))
        total += sys.getsizeof(one)
        if isinstance(one, np.ndarray):
            todo.append(one.base)
        else:
            todo += gc.get_referents(one)
    return total

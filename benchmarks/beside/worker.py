"""A side in a process of its own: commands as JSON lines on stdin, answers on stdout.

Started by `process.py`, with any Python that has the side's packages:
    python worker.py SIDE MODEL DTYPE THREADS [OPTION ...]
A command is [method, argument, ...]; an answer {"result": ...} or {"error": ...}. What the side's
libraries print goes to stderr.
"""

import ctypes
import importlib
import json
import os
import signal
import sys
import traceback

SIDES = {
    "interlock": ("interlock_side", "InterlockSide"),
    "transformers": ("transformers_side", "TransformersSide"),
    "vllm": ("vllm_side", "VllmSide"),
    "plain": ("plain_side", "PlainSide"),
}


PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """A stopped process does not see its stdin end: the kernel ends it with its parent."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    """Build the side, then answer until stdin ends."""
    name, model, dtype, threads, *options = sys.argv[1:]
    die_with_parent()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    try:
        module, kind = SIDES[name]
        side = getattr(importlib.import_module(module), kind)(model, dtype, int(threads), options)
        print(json.dumps({"result": side.facts()}), file=answers)
        for line in sys.stdin:
            method, *arguments = json.loads(line)
            print(json.dumps({"result": getattr(side, method)(*arguments)}), file=answers)
    except Exception as error:
        traceback.print_exc()
        print(json.dumps({"error": f"{type(error).__name__}: {str(error)[:400]}"}), file=answers)
        sys.exit(1)


if __name__ == "__main__":
    main()

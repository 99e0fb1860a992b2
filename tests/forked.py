"""A Python that has imported Interlock, and forks for each command: its imports take seconds.

A command has what a process of its own would have: folder, environment, `sys.path`, output and
status, and no module of the plugins that its environment holds. Only Interlock's own modules, and
what they import, are there before it begins.
"""

import atexit
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_SERVER = """
import json, os, sys, traceback
import torch
import interlock.conf.assembly, interlock.driver.cli, interlock.driver.explain
import interlock.driver.plugins_command, interlock.driver.run

def forked(job):
    said = os.open(job["output"], os.O_WRONLY)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(said, 1)
    os.dup2(said, 2)
    os.chdir(job["cwd"])
    own = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    os.environ.clear()
    os.environ.update(job["environment"])
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [job["root"], *filter(None, path), *(p for p in sys.path if p not in own)]
    sys.argv = job["argv"]
    try:
        exec(compile(job["code"], sys.argv[0], "exec"), {"__name__": "__main__"})
        return 0
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
            return 1
        return end.code or 0
    except BaseException:
        traceback.print_exc()
        return 1

print("ready", flush=True)
for line in sys.stdin:
    job = json.loads(line)
    child = os.fork()
    if not child:
        status = 1
        try:
            status = forked(job)
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@cache
def _server() -> "subprocess.Popen[str]":
    server = subprocess.Popen(
        [sys.executable, "-P", "-c", _SERVER],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    assert server.stdout.readline() == "ready\n"
    atexit.register(_end, server)
    return server


def _end(server: "subprocess.Popen[str]") -> None:
    with server, contextlib.suppress(OSError):
        assert server.stdin is not None
        server.stdin.close()


def run(code: str, *arguments: str, cwd: Path, environment: dict[str, str]) -> tuple[int, str]:
    """The status of `python -c CODE ARGUMENTS` in an environment, and all that it printed."""
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    with tempfile.NamedTemporaryFile("w+") as output:
        job = {
            "code": code, "argv": [str(ROOT / "run.py"), *arguments], "cwd": str(cwd),
            "environment": environment, "output": output.name, "root": str(ROOT),
        }  # fmt: skip
        server.stdin.write(json.dumps(job) + "\n")
        server.stdin.flush()
        status = int(server.stdout.readline())
        return status, Path(output.name).read_text(encoding="utf-8")

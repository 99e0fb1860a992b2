"""What a launcher started is found and ended, however it was detached, and nothing else."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from interlock.driver.interrupts import Terminated, status_of, stopped_once
from interlock.study.end_processes import MARK, end_marked

pytestmark = pytest.mark.skipif(not Path("/proc/self").exists(), reason="no /proc here")
LAUNCHER = """
sh -c 'trap "" TERM; echo $$; sleep 60' &
setsid sh -c 'trap "" TERM; echo $$; sleep 60 & wait' &
env -i sh -c 'echo $$; sleep 60' &
echo $$
wait
"""
"""Jobs that ignore a SIGTERM, one in a session of its own, and one whose environment is gone."""


def alive(process: int) -> bool:
    try:
        return Path("/proc", str(process), "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_all_that_a_launcher_started_is_ended_and_nothing_else():
    def start(launch: str, command: str) -> subprocess.Popen[str]:
        environment = {**os.environ, MARK: launch}
        return subprocess.Popen(
            ["sh", "-c", command], env=environment, stdout=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip

    with start("mine", LAUNCHER) as launcher, start("other", "echo $$; sleep 60") as other:
        assert launcher.stdout is not None
        assert other.stdout is not None
        started = [int(launcher.stdout.readline()) for _ in range(4)]
        other.stdout.readline()
        assert launcher.pid in started
        assert all(map(alive, started))
        end_marked("mine", patience_s=0.2)
        assert not any(map(alive, started))
        assert alive(other.pid)
        end_marked("other", patience_s=0.2)
        assert launcher.wait() == other.wait() == -signal.SIGTERM


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["ctrl-c", "sigterm"]
)
def test_a_program_is_stopped_once_and_cleans_up_in_peace(number, status):
    cleaned: list[bool] = []

    def work() -> None:
        try:
            os.kill(os.getpid(), number)
            time.sleep(5)
        finally:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGTERM)
            cleaned.append(True)

    with pytest.raises(KeyboardInterrupt) as stop, stopped_once():
        work()
    assert cleaned
    assert status_of(stop.value) == status
    assert isinstance(stop.value, Terminated) == (number == signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_signal_that_is_ignored_stays_ignored():
    """As in a background job of a shell script."""
    code = (
        "import os, signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "from interlock.driver.interrupts import stopped_once\n"
        "with stopped_once(): os.kill(os.getpid(), signal.SIGINT)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0

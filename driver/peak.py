"""What this machine's memory can deliver, measured in the run that is judged by it."""

import time

import torch


def measure_cpu_bandwidth(size_bytes: int, seconds: float = 0.2) -> float:
    """Bytes per second that a float32 matrix-vector product reads: the peak behind a CPU's MBU.

    The matrix takes `size_bytes` (at least 1 MiB, at most 256 MiB): give the bytes that a step
    reads, since a model that fits the cache is not bound by memory. The fastest repetition within
    `seconds` counts. Uses torch's current number of threads; takes under 0.5 s.
    """
    columns = 1024
    rows = min(max(size_bytes, 1 << 20), 1 << 28) // (4 * columns)
    matrix = torch.ones(rows, columns)
    vector = torch.ones(columns)
    read_bytes = matrix.nbytes + vector.nbytes
    torch.mv(matrix, vector)
    fastest_s, deadline_s = float("inf"), time.perf_counter() + seconds
    while True:
        start_s = time.perf_counter()
        torch.mv(matrix, vector)
        end_s = time.perf_counter()
        fastest_s = min(fastest_s, end_s - start_s)
        if end_s >= deadline_s:
            return read_bytes / fastest_s

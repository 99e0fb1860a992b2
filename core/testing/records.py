"""Hand-made records: a request whose tokens come out at stated milliseconds."""

from interlock.core.request import RequestRecord, Status


def answered(
    index: int, chunks_ms: list[tuple[float, int]], arrival_ms: float = 0.0, prompt: int = 10
) -> RequestRecord:
    """A finished request with chunks of (time, tokens)."""
    return RequestRecord(
        index=index,
        status=Status.FINISHED,
        num_prompt_tokens=prompt,
        output_token_ids=[7] * sum(size for _, size in chunks_ms),
        arrival_s=arrival_ms / 1e3,
        admitted_s=arrival_ms / 1e3,
        finished_s=chunks_ms[-1][0] / 1e3,
        chunk_times_s=[at / 1e3 for at, _ in chunks_ms],
        chunk_sizes=[size for _, size in chunks_ms],
        target_passes=len(chunks_ms) - 1,
        pass_tokens=sum(size for _, size in chunks_ms[1:]),
    )


def failed(index: int, at_ms: float = 0.0) -> RequestRecord:
    """A request refused at intake."""
    return RequestRecord(
        index=index,
        status=Status.FAILED,
        error=f"request {index}: the prompt is empty",
        arrival_s=at_ms / 1e3,
        finished_s=at_ms / 1e3,
    )


def running(index: int) -> RequestRecord:
    """A request that had one of its tokens when the run ended."""
    return RequestRecord(
        index=index,
        status=Status.RUNNING,
        num_prompt_tokens=10,
        output_token_ids=[7],
        admitted_s=0.0,
        chunk_times_s=[0.001],
        chunk_sizes=[1],
    )

"""A chi-square test for counts that come from fixed seeds."""

from collections.abc import Sequence


def assert_follows(counts: Sequence[float], law: Sequence[float]) -> None:
    """Assert that observed counts fit the probabilities of `law` (zero ones exactly).

    The limit is the quantile at 4.5 standard deviations (about 3 in a million), by Wilson and
    Hilferty's cube-root approximation (1931).
    """
    total = sum(counts)
    statistic, cells = 0.0, 0
    for count, probability in zip(counts, law, strict=True):
        expected = probability * total
        if probability == 0:
            assert count == 0, f"an impossible outcome occurred {count} times"
            continue
        assert expected >= 5, f"too few draws: {expected:.1f} expected in a cell"
        statistic += (count - expected) ** 2 / expected
        cells += 1
    if cells < 2:
        return
    freedom = cells - 1
    spread = 2 / (9 * freedom)
    limit: float = freedom * (1 - spread + 4.5 * spread**0.5) ** 3
    assert statistic < limit, f"chi-square {statistic:.1f} of {freedom} degrees, limit {limit:.1f}"

"""Token sequences of a wanted length: pieces of a text, or random ids."""

from collections.abc import Callable
from dataclasses import dataclass

from numpy.random import Generator

Tokens = tuple[int, ...]


@dataclass(frozen=True)
class Pieces:
    """`opening` starts every prompt (begin-of-text, where the tokenizer adds it); `take(n)` gives
    n further tokens, new ones at each call."""

    opening: Tokens
    take: Callable[[int], Tokens]


def random_pieces(vocab_size: int, rng: Generator) -> Pieces:
    """Ids drawn uniformly from the vocabulary."""
    return Pieces((), lambda count: tuple(rng.integers(0, vocab_size, count).tolist()))


def text_pieces(text: str, encode: Callable[[str], list[int]], rng: Generator) -> Pieces:
    """Pieces that begin at a random line of `text` (and go on at its start when it ends)."""
    opening = tuple(encode(""))
    starts = [0, *(at + 1 for at, char in enumerate(text[:-1]) if char == "\n")]

    def take(count: int) -> Tokens:
        start = starts[int(rng.integers(len(starts)))]
        return _tokens_from(text, start, count, lambda part: encode(part)[len(opening) :])

    return Pieces(opening, take)


def _tokens_from(text: str, start: int, count: int, encode: Callable[[str], list[int]]) -> Tokens:
    """The first `count` tokens of the text from `start`, wrapping around as often as needed."""
    characters = 8 * count + 8
    while True:
        part = text[start : start + characters]
        while len(part) < characters:
            part += text[: characters - len(part)]
        tokens = encode(part)
        # One token more than wanted: the last one may have been cut by the end of the part.
        if len(tokens) > count:
            return tuple(tokens[:count])
        characters *= 2

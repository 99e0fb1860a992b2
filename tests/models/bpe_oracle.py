"""Byte-pair encoding by its definition: split, then merge the best pair until there is none."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import regex

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def byte_symbols() -> list[str]:
    """GPT-2's printable character of every byte."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in shown]
    symbols = {byte: chr(byte) for byte in shown}
    symbols |= {byte: chr(256 + place) for place, byte in enumerate(rest)}
    return [symbols[byte] for byte in range(256)]


def split_by(expressions: Sequence[str], text: str) -> list[str]:
    """Cut by each expression in turn: matches are pieces, and what lies between them."""
    pieces = [text]
    for expression in expressions:
        cut = []
        for piece in pieces:
            end = 0
            for match in regex.finditer(expression, piece):
                cut += [piece[end : match.start()], match.group()]
                end = match.end()
            cut.append(piece[end:])
        pieces = [piece for piece in cut if piece]
    return pieces


def merge(symbols: list[str], cost: Callable[[str, str], float | None]) -> list[str]:
    """Merge the adjacent pair of least cost (None: not allowed), leftmost first, until done."""
    while True:
        costs = [cost(*pair) for pair in pairwise(symbols)]
        allowed = [(c, place) for place, c in enumerate(costs) if c is not None]
        if not allowed:
            return symbols
        _, place = min(allowed)
        symbols[place : place + 2] = [symbols[place] + symbols[place + 1]]


def byte_level_ids(
    text: str, vocab: Mapping[str, int], merges: Sequence[str], expressions: Sequence[str]
) -> list[int]:
    """Byte-level BPE: pieces as bytes, pairs by their rank."""
    ranks = {tuple(pair.split(" ")): rank for rank, pair in enumerate(merges)}
    table = byte_symbols()
    ids = []
    for piece in split_by(expressions, text):
        symbols = [table[byte] for byte in piece.encode()]
        ids += [vocab[token] for token in merge(symbols, lambda a, b: ranks.get((a, b)))]
    return ids


def sentencepiece_ids(text: str, scores: Mapping[str, float], ids: Mapping[str, int]) -> list[int]:
    """SentencePiece BPE: the pair whose token has the best score; unknown characters as bytes."""
    spaced = "\u2581" + text.replace(" ", "\u2581") if text else ""
    found = []
    for token in merge(list(spaced), lambda a, b: -scores[a + b] if a + b in scores else None):
        if token in ids:
            found.append(ids[token])
        else:
            found += [ids[f"<0x{byte:02X}>"] for byte in token.encode()]
    return found

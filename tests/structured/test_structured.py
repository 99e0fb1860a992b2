"""The built-in components against the contract, and their vocabularies."""

import pytest

from interlock.core.testing.structured_contract import StructuredContract
from interlock.core.testing.tiny import write_byte_tokenizer
from interlock.plugins.models.hugging_face import HuggingFaceDirectory
from interlock.plugins.models.text import load_codec
from interlock.plugins.structured import XGrammarConfig
from interlock.plugins.structured.none import NoGrammars
from interlock.plugins.structured.xgrammar_masks import XGrammar


class Bytes:
    @pytest.fixture(autouse=True)
    def tokenizer(self, tmp_path_factory):
        folder = tmp_path_factory.mktemp("bytes")
        write_byte_tokenizer(folder)
        self.codec = load_codec(HuggingFaceDirectory(folder))

    def ids(self, text):
        return self.codec.encode(text)


class TestNoGrammars(Bytes, StructuredContract):
    refuses_everything = True

    def make(self):
        return NoGrammars()


class TestXGrammar(Bytes, StructuredContract):
    def make(self):
        return XGrammar(XGrammarConfig(), self.codec, 300)

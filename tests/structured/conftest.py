import pytest

from interlock.core.registry import load_registry
from interlock.core.testing.tiny import write_tiny_checkpoint
from interlock.core.testing.tiny_eagle import write_tiny_eagle


@pytest.fixture(scope="session")
def spelling(tmp_path_factory):
    """A model over bytes whose vocabulary has 43 ids more than its tokenizer."""
    folder = tmp_path_factory.mktemp("spelling") / "gqa"
    families = list(load_registry().families.values())
    write_tiny_checkpoint(folder, "gqa", families, tokenizer=True, vocab_size=300)
    write_tiny_eagle(folder / "eagle", folder)
    return folder

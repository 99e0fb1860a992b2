"""The tiny models of the engine's tests."""

from tests.engine.conftest import model_of

__all__ = ["model_of"]

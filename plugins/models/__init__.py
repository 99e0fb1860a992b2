"""Built-in components: models."""

from interlock.core.model import ModelFamily
from interlock.core.model_files import ModelFormat


def model_families() -> list[ModelFamily]:
    """The built-in families, in no particular order."""
    from interlock.plugins.models.deepseek import DeepseekFamily
    from interlock.plugins.models.gemma import GemmaFamily
    from interlock.plugins.models.gpt_oss import GptOssFamily
    from interlock.plugins.models.llama import LlamaFamily

    return [LlamaFamily(), DeepseekFamily(), GemmaFamily(), GptOssFamily()]


def model_formats() -> list[ModelFormat]:
    """The built-in ways to store a model, besides Hugging Face directories."""
    from interlock.plugins.models.gguf import GGUFFormat

    return [GGUFFormat()]

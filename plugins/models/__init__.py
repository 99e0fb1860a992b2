"""Built-in components: models."""

from interlock.core.model import ModelFamily
from interlock.core.model_files import ModelFormat
from interlock.core.text import CodecReader


def model_families() -> list[ModelFamily]:
    """The built-in families, in no particular order."""
    from interlock.plugins.models.deepseek import DeepseekV2Family, DeepseekV3Family
    from interlock.plugins.models.gemma import Gemma2Family, Gemma3Family
    from interlock.plugins.models.glm4_moe import Glm4MoeFamily
    from interlock.plugins.models.gpt_oss import GptOssFamily
    from interlock.plugins.models.llama import LlamaFamily
    from interlock.plugins.models.minimax_m2 import MiniMaxM2Family
    from interlock.plugins.models.mistral import MinistralFamily, MistralFamily
    from interlock.plugins.models.mixtral import MixtralFamily
    from interlock.plugins.models.olmo3 import Olmo3Family
    from interlock.plugins.models.qwen2 import Qwen2Family
    from interlock.plugins.models.qwen3 import Qwen3Family
    from interlock.plugins.models.qwen_moe import Qwen2MoeFamily, Qwen3MoeFamily

    return [
        DeepseekV2Family(),
        DeepseekV3Family(),
        Gemma2Family(),
        Gemma3Family(),
        Glm4MoeFamily(),
        GptOssFamily(),
        LlamaFamily(),
        MiniMaxM2Family(),
        MinistralFamily(),
        MistralFamily(),
        MixtralFamily(),
        Olmo3Family(),
        Qwen2Family(),
        Qwen2MoeFamily(),
        Qwen3Family(),
        Qwen3MoeFamily(),
    ]


def model_formats() -> list[ModelFormat]:
    """The built-in ways to store a model."""
    from interlock.plugins.models.gguf import GGUFFormat
    from interlock.plugins.models.hugging_face import HuggingFaceFormat

    return [HuggingFaceFormat(), GGUFFormat()]


def codec_readers() -> list[CodecReader]:
    """The built-in ways to read a model's tokenizer."""
    from interlock.plugins.models.text import load_codec

    return [load_codec]

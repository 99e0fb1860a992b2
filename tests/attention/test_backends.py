"""Every built-in attention backend keeps the contract."""

from interlock.core.attention import AttentionBackend
from interlock.core.testing.attention_contract import AttentionContract
from interlock.plugins.attention.gqa import GqaAttention, NativeGqaAttention
from interlock.plugins.attention.mla import MlaAttention, NativeMlaAttention
from interlock.plugins.attention.reference import ReferenceAttention


class TestReference(AttentionContract):
    forms = ("heads", "latent")
    long_chunk_tokens = 60
    serves_softcaps = True
    serves_sinks = True

    def make(self) -> AttentionBackend:
        return ReferenceAttention()


class TestGqa(AttentionContract):
    forms = ("heads",)
    serves_softcaps = True
    serves_sinks = True

    def make(self) -> AttentionBackend:
        return GqaAttention()


class TestNativeGqa(AttentionContract):
    forms = ("heads",)
    serves_softcaps = True
    serves_sinks = True

    def make(self) -> AttentionBackend:
        return NativeGqaAttention()


class TestMlaByCost(AttentionContract):
    forms = ("latent",)

    def make(self) -> AttentionBackend:
        return MlaAttention()


class TestMlaAbsorbed(AttentionContract):
    forms = ("latent",)

    def make(self) -> AttentionBackend:
        return MlaAttention("absorbed")


class TestMlaExpanded(AttentionContract):
    forms = ("latent",)

    def make(self) -> AttentionBackend:
        return MlaAttention("expanded")


class TestNativeMlaByCost(AttentionContract):
    forms = ("latent",)

    def make(self) -> AttentionBackend:
        return NativeMlaAttention()


class TestNativeMlaAbsorbed(AttentionContract):
    forms = ("latent",)

    def make(self) -> AttentionBackend:
        return NativeMlaAttention("absorbed")

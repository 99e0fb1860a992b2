from interlock.core.testing.feature_drafter_contract import FeatureDrafterContract
from interlock.core.testing.tiny_eagle import write_tiny_eagle


class TestEagle(FeatureDrafterContract):
    def overrides(self, model):
        write_tiny_eagle(model / "eagle", model)
        return ["spec=eagle", "spec.num_drafts=3"]

    def drafter(self, executor):
        return executor.drafter


class TestEagleOnMla(TestEagle):
    kind = "mla"


class TestEagleOnCaps(TestEagle):
    kind = "caps"


class TestEagleOnSinks(TestEagle):
    kind = "sinks"

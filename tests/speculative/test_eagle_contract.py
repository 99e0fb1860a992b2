from interlock.core.testing.feature_drafter_contract import FeatureDrafterContract
from interlock.core.testing.tiny_eagle import write_tiny_eagle
from tests.speculative.eagle3_files import write_tiny_eagle3

TREE = "[[0],[1],[0,0],[0,1],[1,0],[0,0,0]]"


class TestEagle(FeatureDrafterContract):
    chosen = ("spec=eagle", "spec.num_drafts=3")

    def overrides(self, model):
        write_tiny_eagle(model / "eagle", model)
        return list(self.chosen)

    def drafter(self, executor):
        return executor.drafter


class TestEagleOnMla(TestEagle):
    kind = "mla"


class TestEagleOnCaps(TestEagle):
    kind = "caps"


class TestEagleOnSinks(TestEagle):
    kind = "sinks"


class TestSampledChains(TestEagle):
    chosen = ("spec=eagle", "spec.num_drafts=3", "spec.proposal=sampled")


class TestStaticTrees(TestEagle):
    chosen = ("spec=eagle", "spec.num_drafts=6", f"spec.tree={TREE}")


class TestSampledTrees(TestEagle):
    chosen = (*TestStaticTrees.chosen, "spec.proposal=sampled")


class TestEagle2(TestEagle):
    chosen = ("spec=eagle2", "spec.num_drafts=7", "spec.depth=3", "spec.top_k=3")


class TestEagle2OnMla(TestEagle2):
    kind = "mla"


class TestEagle3(FeatureDrafterContract):
    chosen = ("spec=eagle3", "spec.num_drafts=3")
    draft_vocab = 24

    def overrides(self, model):
        write_tiny_eagle3(model / "eagle3", model, draft_vocab=self.draft_vocab)
        return list(self.chosen)

    def drafter(self, executor):
        return executor.drafter


class TestEagle3Trees(TestEagle3):
    chosen = ("spec=eagle3", "spec.num_drafts=9", "spec.tree=dynamic", "spec.top_k=3")


class TestEagle3SampledTrees(TestEagle3):
    chosen = ("spec=eagle3", "spec.num_drafts=6", f"spec.tree={TREE}", "spec.proposal=sampled")

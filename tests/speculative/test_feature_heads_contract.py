from interlock.core.testing.feature_drafter_contract import FeatureDrafterContract
from tests.speculative.feature_heads_oracle import HydraOracle, MedusaOracle, write


class TestMedusa(FeatureDrafterContract):
    def overrides(self, model):
        write(model / "medusa", MedusaOracle().tensors("repository"))
        return ["spec=medusa", "spec.tree=auto", "spec.num_drafts=9"]

    def drafter(self, executor):
        return executor.drafter


class TestHydra(FeatureDrafterContract):
    kind = "mla"

    def overrides(self, model):
        write(model / "hydra", HydraOracle().tensors())
        return ["spec=hydra", "spec.tree=[[0],[1],[0,0],[0,1],[1,0],[0,0,0]]", "spec.num_drafts=6"]

    def drafter(self, executor):
        return executor.drafter

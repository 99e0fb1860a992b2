"""Every built-in component is run through its seam's contract class; a missing one fails here."""

import importlib

import pytest

from interlock.core.registry import load_registry
from interlock.driver.conformance import CONTRACTS

FEATURE_DRAFTERS = (
    "eagle", "eagle2", "eagle3", "medusa", "hydra", "mtp", "draft_model", "dflash", "dspark",
)  # fmt: skip
OTHER_CONTRACTS = {
    ("spec", name): "feature_drafter_contract:FeatureDrafterContract" for name in FEATURE_DRAFTERS
}
for _seam in ("cache/tiers", "cache/tiers/below"):
    OTHER_CONTRACTS[_seam, "none"] = "load_contract:NoStoreContract"
    OTHER_CONTRACTS[_seam, "priced"] = "load_contract:PricedTierContract"

TESTED = {
    ("attention", "reference"): "attention.test_backends:TestReference",
    ("attention", "gqa"): "attention.test_backends:TestGqa",
    ("attention", "mla"): "attention.test_backends:TestMlaByCost",
    ("cache/allocator", "paged"): "cache.test_allocators:TestPagedAllocator",
    ("cache/allocator", "contiguous"): "cache.test_allocators:TestContiguousAllocator",
    ("cache/allocator", "buddy"): "cache.test_allocators:TestBuddyAllocator",
    ("cache/index", "block_hash"): "cache.test_indexes:TestBlockHashIndex",
    ("cache/index", "radix"): "cache.test_indexes:TestRadixIndex",
    ("cache/index", "none"): "cache.test_indexes:TestNoIndex",
    ("cache/eviction", "lru"): "cache.test_eviction:TestLRUEviction",
    ("cache/eviction", "fifo"): "cache.test_eviction:TestFIFOEviction",
    ("cache/eviction", "lfu"): "cache.test_eviction:TestLFUEviction",
    ("cache/eviction", "length_aware"): "cache.test_eviction:TestLengthAwareEviction",
    ("cache/eviction", "s3fifo"): "cache.test_eviction:TestS3FIFOEviction",
    ("cache/eviction", "lruk"): "cache.test_eviction:TestLRUKEviction",
    ("cache/eviction", "arc"): "cache.test_eviction:TestARCEviction",
    ("cache/eviction", "cost_aware"): "cache.test_eviction:TestCostAwareEviction",
    ("cache/eviction", "ttl"): "cache.test_eviction:TestTTLEviction",
    ("cache/eviction", "priority"): "cache.test_eviction:TestPriorityEviction",
    ("cache/eviction", "belady"): "cache.test_eviction:TestBeladyEviction",
    ("cache/load", "always"): "cache.test_load_policies:TestAlways",
    ("cache/load", "never"): "cache.test_load_policies:TestNever",
    ("cache/load", "cost"): "cache.test_load_policies:TestCost",
    ("cache/events", "none"): "cache.test_watches:TestNoEvents",
    ("cache/events", "jsonl"): "cache.test_watches:TestJSONL",
    ("cache/events", "memory"): "cache.test_watches:TestMemory",
    ("cache/snapshot", "none"): "cache.test_watches:TestNoSnapshot",
    ("cache/snapshot", "directory"): "cache.test_watches:TestDirectory",
    ("scheduler/order", "arrival"): "scheduler.test_policies:TestArrivalOrder",
    ("scheduler/order", "priority"): "scheduler.test_policies:TestPriorityOrder",
    ("scheduler/admission", "when_it_fits"): "scheduler.test_policies:TestWhenItFits",
    ("scheduler/chunking", "prefill_first"): "scheduler.test_chunking:TestPrefillFirst",
    ("scheduler/chunking", "decode_first"): "scheduler.test_chunking:TestDecodeFirst",
    ("scheduler/victim", "latest"): "scheduler.test_policies:TestLatestVictim",
    ("scheduler/victim", "lowest_priority"): "scheduler.test_policies:TestLowestPriorityVictim",
    ("spec", "none"): "speculative.test_ngram:TestNoDrafter",
    ("spec", "ngram"): "speculative.test_ngram:TestNgramLatest",
    ("spec", "draft_model"): "speculative.test_block_engine:TestDraftModel",
    ("spec", "dflash"): "speculative.test_block_engine:TestDFlash",
    ("spec", "dspark"): "speculative.test_block_engine:TestDSpark",
    ("spec", "eagle"): "speculative.test_eagle_contract:TestEagle",
    ("spec/verifier", "target_only"): "speculative.test_verifiers:TestTargetOnly",
    ("spec/verifier", "ratio"): "speculative.test_verifiers:TestRatio",
    ("spec/verifier", "recursive"): "speculative.test_verifiers:TestRecursive",
    ("spec/verifier", "block"): "speculative.test_verifiers:TestBlock",
    ("spec/verifier", "typical"): "speculative.test_verifiers:TestTypical",
    ("spec", "eagle2"): "speculative.test_eagle_contract:TestEagle2",
    ("spec", "eagle3"): "speculative.test_eagle_contract:TestEagle3",
    ("spec", "suffix"): "speculative.test_suffix:TestSuffix",
    ("spec", "lookahead"): "speculative.test_lookahead:TestLookahead",
    ("spec", "medusa"): "speculative.test_feature_heads_contract:TestMedusa",
    ("spec", "hydra"): "speculative.test_feature_heads_contract:TestHydra",
    ("spec", "mtp"): "speculative.test_mtp_engine:TestMtp",
    ("spec/length", "fixed"): "speculative.test_lengths:TestFixed",
    ("spec/length", "schedule"): "speculative.test_lengths:TestSchedule",
    ("spec/length", "dspark"): "speculative.test_dspark:TestDSpark",
    ("spec/length", "ema"): "speculative.test_lengths:TestEma",
    ("spec/length", "goodput"): "speculative.test_lengths:TestGoodput",
    ("spec/length", "threshold"): "speculative.test_lengths:TestThreshold",
    ("parallel", "none"): "parallel.test_parallel:TestNone",
    ("parallel", "tensor"): "parallel.test_parallel:TestTensor",
    ("structured", "none"): "structured.test_structured:TestNoGrammars",
    ("structured", "xgrammar"): "structured.test_structured:TestXGrammar",
    ("executor", "torch"): "executor.test_executors:TestTorch",
    ("executor", "cuda_graph"): "executor.test_executors:TestCudaGraph",
    ("executor", "fixed"): "executor.test_executors:TestFixed",
    ("workload", "chat"): "frontend.test_contracts:TestChat",
    ("workload", "prompts"): "frontend.test_contracts:TestPrompts",
    ("workload", "synthetic"): "frontend.test_contracts:TestSynthetic",
    ("workload", "trace"): "frontend.test_contracts:TestTrace",
}

for _seam in ("cache/tiers", "cache/tiers/below"):
    TESTED |= {
        (_seam, "none"): "cache.test_load_policies:TestNoTier",
        (_seam, "priced"): "cache.test_load_policies:TestPriced",
        (_seam, "cpu"): "cache.test_tiers:TestCPU",
        (_seam, "disk"): "cache.test_tiers:TestDisk",
        (_seam, "remote"): "cache.test_tiers:TestRemote",
        (_seam, "mooncake"): "cache.test_tiers:TestMooncake",
    }


def find(path, package):
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(f"{package}.{module}"), name)


def built_in():
    registry = load_registry()
    return {key for key in registry.components if registry.origins[key].distribution == "interlock"}


def test_every_built_in_component_has_a_conformance_test():
    assert set(TESTED) == built_in()


@pytest.mark.parametrize("key", sorted(TESTED), ids="=".join)
def test_the_conformance_test_runs_the_seams_contract(key):
    contract = OTHER_CONTRACTS.get(key, CONTRACTS[key[0]])
    assert issubclass(find(TESTED[key], "tests"), find(contract, "interlock.core.testing"))

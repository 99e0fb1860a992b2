"""Watches of the cache keep their contract."""

from interlock.core.testing.cache_watch_contract import CacheWatchContract


class TestNoEvents(CacheWatchContract):
    def overrides(self, folder):
        return ["cache/events=none"]


class TestJSONL(CacheWatchContract):
    def overrides(self, folder):
        return ["cache/events=jsonl", f"cache.events.path={folder / 'events.jsonl'}"]


class TestMemory(CacheWatchContract):
    def overrides(self, folder):
        return ["cache/events=memory"]


class TestNoSnapshot(CacheWatchContract):
    def overrides(self, folder):
        return ["cache/snapshot=none"]


class TestDirectory(CacheWatchContract):
    def overrides(self, folder):
        return ["cache/snapshot=directory", f"cache.snapshot.save={folder / 'snapshot'}"]

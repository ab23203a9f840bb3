"""Splits by time, probe or pair that share nothing they may not, in shards of equal size."""

from ping_llm.shards.options import ShardOptions
from ping_llm.shards.run import shard

__all__ = ["ShardOptions", "shard"]

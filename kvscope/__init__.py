"""KVScope: where KV cache goes, how near saturation is, where the next request belongs."""

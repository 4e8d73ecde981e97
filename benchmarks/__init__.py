"""Speed and size, measured: `python -m benchmarks [NAMES]`. Nothing here is timed in tests."""

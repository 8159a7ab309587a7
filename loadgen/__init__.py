"""Load tests for OpenAI-compatible LLM endpoints, with numbers that can be trusted."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("loadgen")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"

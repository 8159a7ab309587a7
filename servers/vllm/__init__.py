"""vLLM's own OpenAI server, started with limits that match the static server's.

Nothing of vLLM is wrapped or changed: `__main__` replaces itself by vLLM's `serve` command.
"""

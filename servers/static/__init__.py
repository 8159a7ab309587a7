"""An OpenAI-compatible server that batches statically: the honest baseline for continuous batching.

The way of a request: `app` (HTTP) -> `protocol` (what may be asked) -> `prompts` (token ids) ->
`batcher` (queue and batches) -> `model_process` (the parent's end of the child) -> `engine` (the
child: transformers' `generate`) and back as `job` (text from tokens) -> `replies` (JSON and SSE).
`metrics` counts, `settings` holds the options.
"""

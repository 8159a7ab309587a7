"""The servers that loadgen compares, and what starts and stops them.

`static` is a static-batch server around transformers' `generate`, `vllm` starts vLLM's own server,
`models` makes the embedded model ready for both, and `local` runs either as a child process.
Nothing in `loadgen` imports these.
"""

"""The simulator's policies and costs in real time, behind OpenAI's API: a toy, and no model.

A request's way: `server` (HTTP, OpenAI's shapes) -> `engine` (the policy, paced by its costs) and
back, a token an iteration. What it answers says nothing; when it answers, the simulator says.
"""

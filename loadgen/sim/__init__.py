"""A simulator of batching: policies that say what an iteration runs, costs that say how long.

The policies know neither clock nor HTTP, so that a server can drive them as well as `engine.py`.
"""

"""Requests in, events out: scheduling, sampling, stopping.

`loop.Engine` takes `request.Request`s at any time and returns `request.Event`s step by step. A step
is: `scheduler` chooses rows (ints only), the model computes them, `sampling` chooses a token for
each request that has logits, `generation` turns it into text and ends the request where `stop`
strings, limits or the context say so. What a request answers depends on nothing but the request.
"""

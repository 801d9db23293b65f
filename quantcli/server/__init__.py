"""An OpenAI-compatible HTTP server around the engine: Starlette on uvicorn, the `serve` extra.

The event loop's thread speaks HTTP and only enqueues; `runner` steps the engine in a thread of its
own. A request comes in through `guard` (who may ask), `body` and `fields` (what may be asked),
becomes tokens in `prompts`, an engine request in `sampling`, and its events become OpenAI's shapes
in `chat` and `completions`. `app` puts it together and is the border at which errors end.
"""

"""The HTTP API. `routes.py` lists what there is; `server.asgi(app, …)` is the ASGI program, alone or inside another."""

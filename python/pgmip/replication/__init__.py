"""A replicated database: several replicas, one log (`pgmip replica`).

What decides is in the databases. Here are the logs (`engine`, `embedded`), and the agent that carries messages between
a database and its log (`agent`).
"""

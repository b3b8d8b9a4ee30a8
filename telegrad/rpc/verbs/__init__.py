"""The verbs of `telegrad.rpc`, and the agent that offers them."""

"""The ground that the other rooms of rpc stand on: members, life, failures, facts of a call."""

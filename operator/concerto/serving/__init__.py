"""HTTP servers of the operator and the agents: limited connections, and a thread of their own."""

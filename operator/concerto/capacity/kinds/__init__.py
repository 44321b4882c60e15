"""What pods cost by kind: who is alike, what was measured of them, and what a node can take. Pure.

``api.pod_kind`` says which pods are alike, ``contention`` leaves out of what was measured of a pod what a full node
added to it, ``sums`` holds what was measured of a kind, ``table`` collects and merges it, ``cost`` estimates a pod's
cost from it, and ``node_loads`` says which nodes can take a pod of that cost.
"""

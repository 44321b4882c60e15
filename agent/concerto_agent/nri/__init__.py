"""Concerto's plugin of NRI, the Node Resource Interface of containerd and CRI-O.

`protobuf` and `frames` are the wire, `messages` the few messages that are used, `session` one connection's dialogue;
all four do no I/O. `client` connects, and connects again.
"""

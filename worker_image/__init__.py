"""What runs inside a worker: the agent, the launcher of the user's program, and the shared training entrypoint.

Everything here but the training entrypoint is standard library only and runs on Python 3.9 and newer, because it goes into other
people's images.
"""

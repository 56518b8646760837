"""What both services and their clients share of gRPC: conversion, errors, channels and servers."""

import os

_NAME, _POLLING = "GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener"

if _NAME not in os.environ:
    # gRPC reads this as it is imported. Its event engine hands each message over between threads of its own; without it
    # the thread that Python waits on reads the socket itself: a message there and back takes 120 µs in place of 207.
    os.environ[_NAME] = _POLLING
    import grpc  # noqa: F401

    # Another gRPC in a child process may not know these names.
    del os.environ[_NAME]

"""Held by who catches warnings here: that is done for all of a process, and two at a time would take each other's."""

import threading

WARNINGS_LOCK = threading.RLock()

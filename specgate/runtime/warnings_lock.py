"""Held while warnings are caught: Python catches them for a whole process, so two threads would mix theirs up."""

import threading

WARNINGS_LOCK = threading.RLock()

"""What the two services share: their flags, their life as a process, their sessions."""

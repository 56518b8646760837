"""One request from prompt to text: request, session, loop. No socket, no Ray, no torch."""

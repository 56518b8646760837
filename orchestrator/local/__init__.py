"""Services as child processes of a command."""

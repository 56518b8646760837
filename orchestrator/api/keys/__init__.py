"""Keys of clients: the file that holds their hashes, who a key is, and how much each may ask for."""

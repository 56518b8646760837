"""The gate ``auto``: what it learns of agreement and costs, and what it chooses by that."""

"""The fleet on Ray: replicas, the leases that Ray Serve hands out for them, and the cluster under both."""

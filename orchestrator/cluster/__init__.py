"""The served system on Ray: deployments, leases, the cluster, its token."""

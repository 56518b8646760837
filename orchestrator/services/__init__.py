"""The two services as the decode loop sees them: links, leases, failover, pools."""

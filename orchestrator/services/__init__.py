"""The two services as the decode loop sees them: links, leases, failover, pools."""

import specgate.rpc  # noqa: F401  Before anybody else imports gRPC.

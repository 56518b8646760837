"""The commands of the command line. No other package imports them."""

import specgate.rpc  # noqa: F401  Before anybody else imports gRPC.

"""The commands of the command line. No other package imports them."""

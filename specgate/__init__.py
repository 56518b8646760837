"""specgate: a draft model and a target model in two services, one exact text."""

__version__ = "0.1.0"

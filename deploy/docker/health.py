#!/usr/bin/env python3
"""Leave with 0 where a gateway or a service is well, else with 1: for health checks in containers.

specgate-health http://127.0.0.1:9000/readyz
specgate-health 127.0.0.1:7001 [--ca FILE [--certificate FILE --key FILE]] [--name NAME]
"""

import argparse
import asyncio
import sys
import urllib.request
from pathlib import Path

TIMEOUT_S = 4.0


def main() -> int:
    parser = argparse.ArgumentParser(description="Ask a gateway by its URL, or a service by HOST:PORT, how it is.")
    parser.add_argument("address", metavar="URL|HOST:PORT")
    parser.add_argument("--ca", type=Path, help="PEM file of who signed the service's certificate.")
    parser.add_argument("--certificate", type=Path, help="PEM file that is shown to a service that asks for one.")
    parser.add_argument("--key", type=Path, help="PEM file of its private key.")
    parser.add_argument("--name", default="", help="The name in the service's certificate, where HOST is another.")
    asked = parser.parse_args()
    well = _is_well_by_http(asked.address) if asked.address.startswith("http") else _is_well_by_grpc(asked)
    return 0 if well else 1


def _is_well_by_http(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S):
            return True
    except OSError as error:
        print(f"{url}: {error}", file=sys.stderr)
        return False


def _is_well_by_grpc(asked: argparse.Namespace) -> bool:
    from orchestrator.services.pool import grpc_health
    from specgate.rpc.tls import ClientTlsFiles

    tls = ClientTlsFiles(asked.ca, asked.certificate, asked.key, asked.name) if asked.ca else None

    async def ask() -> bool:
        return await grpc_health(tls, TIMEOUT_S)(asked.address)

    return asyncio.run(ask())


if __name__ == "__main__":
    sys.exit(main())

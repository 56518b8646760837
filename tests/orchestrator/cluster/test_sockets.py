"""What is told of open ports is what listens."""

from socket import create_server

import pytest

pytest.importorskip("ray")

from orchestrator.cluster.sockets import OpenPort, lines_of, open_ports
from tests.support.ray_cluster import RAY_MARKS, Cluster

pytestmark = RAY_MARKS


def test_rays_ports_and_our_own_are_told_beyond_loopback_alone(ray_cluster: Cluster) -> None:
    with create_server(("0.0.0.0", 0)) as everywhere, create_server(("127.0.0.1", 0)) as here:
        ports = open_ports()
        assert OpenPort("*", everywhere.getsockname()[1], "this command") in ports
        assert here.getsockname()[1] not in {one.port for one in ports}
    gcs_port = int(ray_cluster.address.rpartition(":")[2])
    assert gcs_port in {one.port for one in ports if one.process == "Ray's gcs_server"}
    assert "Ray's raylet" in {one.process for one in ports}


def test_a_process_has_one_line_an_interface() -> None:
    ports = [OpenPort("*", 1, "a"), OpenPort("*", 2, "a"), OpenPort("10.0.0.1", 3, "a"), OpenPort("*", 4, "b")]
    assert lines_of(ports) == ["*:1,2  a", "10.0.0.1:3  a", "*:4  b"]

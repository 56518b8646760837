#!/usr/bin/env python3
"""Print which node, by address and labels, carries which replica of Ray Serve; run it on the head.

Plain Ray commands give this as two tables: `ray list nodes` and `ray list actors`.
"""

from ray.util.state import list_actors, list_nodes


def main() -> None:
    """One line a replica that is alive: deployment, address of its node, the labels that `ray start` gave it."""
    nodes = {node.node_id: node for node in list_nodes(detail=True)}
    for actor in list_actors(filters=[("state", "=", "ALIVE")]):
        if actor.class_name.startswith("ServeReplica:"):
            node = nodes[actor.node_id]
            labels = {name: value for name, value in node.labels.items() if not name.startswith("ray.io/")}
            print(f"{actor.class_name.rpartition(':')[2]:<10}{node.node_ip:<16}{labels}")


if __name__ == "__main__":
    main()
